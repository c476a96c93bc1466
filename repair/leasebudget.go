package repair

import (
	"context"
	"fmt"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/budget"
)

// leases are the requests of a leaseBudget. Errors are those of the Kubernetes API.
type leases interface {
	Lease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, l *coordinationv1.Lease) error
	UpdateLease(ctx context.Context, l *coordinationv1.Lease) error
}

// leaseBudget is a Budget that the controllers of all nodes share without a leader: a token bucket in an annotation of a
// Lease, which each controller only writes in the state that it has read. A token takes two requests. A Lease that is
// missing or malformed is an empty bucket.
type leaseBudget struct {
	Budget

	leases leases
	lease  types.NamespacedName
	// tokens is the annotation with the number of tokens at the Lease's renewTime.
	tokens string
	// holder names the writer, for people who look at the Lease.
	holder string
}

// contended bounds the retries of a write after another node was faster, and contendedWait is the time after which the caller should
// come back after that.
const (
	contended     = 5
	contendedWait = time.Second
)

// take takes a token, or returns how long until there is one.
func (b *leaseBudget) take(ctx context.Context) (time.Duration, error) {
	return b.change(ctx, b.Take)
}

// giveBack returns a token that was not used.
func (b *leaseBudget) giveBack(ctx context.Context) error {
	_, err := b.change(ctx, b.GiveBack)
	return err
}

func (b *leaseBudget) change(ctx context.Context, f func(budget.Bucket, time.Time) (budget.Bucket, time.Duration)) (time.Duration, error) {
	for range contended {
		wait, err := b.once(ctx, f)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("use the cluster's budget in lease %s: %w", b.lease, err)
		}
		return wait, nil
	}
	return contendedWait, nil
}

func (b *leaseBudget) once(ctx context.Context, f func(budget.Bucket, time.Time) (budget.Bucket, time.Duration)) (time.Duration, error) {
	lease, err := b.leases.Lease(ctx, b.lease.Namespace, b.lease.Name)
	write := b.leases.UpdateLease
	if apierrors.IsNotFound(err) {
		lease, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: b.lease.Namespace, Name: b.lease.Name}}, nil
		write = b.leases.CreateLease
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	before := b.read(lease)
	state, wait := f(before, now)
	// If no token was taken, there is nothing to write, unless the bucket would never fill as it is.
	if wait > 0 && !before.At.IsZero() && before.At.Sub(now) <= budget.ClockSkew {
		return wait, nil
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[b.tokens] = strconv.FormatFloat(state.Tokens, 'f', -1, 64)
	at := metav1.NewMicroTime(state.At)
	lease.Spec.RenewTime, lease.Spec.HolderIdentity = &at, &b.holder
	return wait, write(ctx, lease)
}

// read returns the Lease's bucket, or an unknown one if it is malformed.
func (b *leaseBudget) read(l *coordinationv1.Lease) budget.Bucket {
	tokens, err := strconv.ParseFloat(l.Annotations[b.tokens], 64)
	if err != nil || !(tokens >= 0) || l.Spec.RenewTime == nil {
		return budget.Bucket{}
	}
	return budget.Bucket{Tokens: tokens, At: l.Spec.RenewTime.Time}
}

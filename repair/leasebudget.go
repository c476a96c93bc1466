package repair

import (
	"context"
	"fmt"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokensAnnotation holds the tokens that are left at the lease's renewTime.
const tokensAnnotation = "meshcni.io/repair-tokens"

// Leases is what a [ClusterBudget] needs of the API server; [*Kube] has it. Errors
// are those of the API machinery.
type Leases interface {
	Lease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// ClusterBudget is one [Budget] that the controllers of all nodes share, without
// a leader: a token bucket in an annotation of a Lease, which each changes only in
// the state in which it read it. A token costs two requests. Clocks may differ by
// as much as the pace may be off. A Lease that is not there, or that says nothing
// understandable, is an empty bucket; one of the future is taken for one of now.
type ClusterBudget struct {
	// Leases reads and writes.
	Leases Leases
	// Namespace and Name are the lease's.
	Namespace, Name string
	// Holder is who writes, for people who look at the lease.
	Holder string
	// Budget is the bound. All nodes should have the same.
	Budget Budget
}

// contended is how often a write is tried that another node was faster with, and
// contendedWait after how long the caller should come again then.
const (
	contended     = 5
	contendedWait = time.Second
)

// Take implements [Taker].
func (c *ClusterBudget) Take(ctx context.Context) (time.Duration, error) {
	return c.change(ctx, c.Budget.take)
}

// Return implements [Taker].
func (c *ClusterBudget) Return(ctx context.Context) error {
	_, err := c.change(ctx, func(s bucket, now time.Time) (bucket, time.Duration) {
		s = c.Budget.refill(s, now)
		s.Tokens = min(float64(c.Budget.Burst), s.Tokens+1)
		return s, 0
	})
	return err
}

func (c *ClusterBudget) change(ctx context.Context, f func(bucket, time.Time) (bucket, time.Duration)) (time.Duration, error) {
	if c.Budget == Unlimited {
		return 0, nil
	}
	for range contended {
		wait, err := c.once(ctx, f)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			if err != nil {
				return 0, fmt.Errorf("take from the cluster's budget, lease %s/%s: %w", c.Namespace, c.Name, err)
			}
			return wait, nil
		}
	}
	return contendedWait, nil
}

func (c *ClusterBudget) once(ctx context.Context, f func(bucket, time.Time) (bucket, time.Duration)) (time.Duration, error) {
	lease, err := c.Leases.Lease(ctx, c.Namespace, c.Name)
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return 0, err
	}
	if absent {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}}
	}
	now := time.Now()
	before := readBucket(lease)
	state, wait := f(before, now)
	// Where nothing was taken there is nothing to write, unless the bucket would never fill as it is.
	if wait > 0 && !absent && !before.At.IsZero() && before.At.Sub(now) <= clockSkew {
		return wait, nil
	}
	c.writeBucket(lease, state)
	if absent {
		_, err = c.Leases.CreateLease(ctx, lease)
	} else {
		_, err = c.Leases.UpdateLease(ctx, lease)
	}
	return wait, err
}

// readBucket reads what writeBucket wrote; one that is not known when it cannot be read.
func readBucket(l *coordinationv1.Lease) bucket {
	tokens, err := strconv.ParseFloat(l.Annotations[tokensAnnotation], 64)
	if err != nil || !(tokens >= 0) || l.Spec.RenewTime == nil {
		return bucket{}
	}
	return bucket{tokens, l.Spec.RenewTime.Time}
}

func (c *ClusterBudget) writeBucket(l *coordinationv1.Lease, s bucket) {
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[tokensAnnotation] = strconv.FormatFloat(s.Tokens, 'f', -1, 64)
	at := metav1.NewMicroTime(s.At)
	l.Spec.RenewTime, l.Spec.HolderIdentity = &at, &c.Holder
}

// Lease implements [Leases].
func (k *Kube) Lease(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	l := &coordinationv1.Lease{}
	err := k.leases.Get().Namespace(namespace).Resource("leases").Name(name).Do(ctx).Into(l)
	return l, err
}

// CreateLease implements [Leases].
func (k *Kube) CreateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	err := k.leases.Post().Namespace(l.Namespace).Resource("leases").Body(l).Do(ctx).Into(out)
	return out, err
}

// UpdateLease implements [Leases].
func (k *Kube) UpdateLease(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	err := k.leases.Put().Namespace(l.Namespace).Resource("leases").Name(l.Name).Body(l).Do(ctx).Into(out)
	return out, err
}

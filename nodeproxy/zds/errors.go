package zds

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// ErrTimeout: the proxy did not answer in time. Its connection is closed, so a late answer is not read. Check with
// errors.Is(err, zds.ErrTimeout).
var ErrTimeout = errors.New("the proxy did not answer in time")

// errRemoved: while the pod waited for its Add to be sent, it was removed.
var errRemoved = errors.New("the pod was removed meanwhile")

// NackError: the proxy refused a request. Get it with errors.As(err, &nackError).
type NackError struct {
	// Kind is the request, UID its pod.
	Kind Kind
	UID  types.UID
	// Reason is the proxy's.
	Reason string
}

// Error returns for example `the proxy refused Add of pod "6d4b…": address in use`.
func (e *NackError) Error() string {
	return fmt.Sprintf("the proxy refused %s of pod %q: %s", e.Kind, e.UID, e.Reason)
}

// errGone: the connection ended before the request was answered.
var errGone = errors.New("the proxy disconnected")

// errCrowd: the connection made room for one of others.
var errCrowd = errors.New("its control group has the most connections, and another needed one")

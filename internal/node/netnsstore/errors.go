//go:build linux

package netnsstore

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
)

// Why a namespace is not known, or not the pod's. Check with errors.Is(err, netnsstore.ErrNoProcess), and so on. Later, each
// but ErrUID may be over.
var (
	// ErrNoProcess: no process of the pod runs outside the host's namespace.
	ErrNoProcess = podnetns.ErrNoProcess
	// ErrAddress: a namespace does not have all of the pod's addresses.
	ErrAddress = podnetns.ErrAddress
	// ErrUID: the UID is not one that a kubelet uses.
	ErrUID = podnetns.ErrUID
	// ErrNoAddress: no address of the pod is known, so nothing can be proven.
	ErrNoAddress = errors.New("no address of the pod is known yet")
	// ErrForeign: the namespace is another pod's, or the pod's processes are in another one with the pod's addresses.
	ErrForeign = errors.New("not the pod's network namespace")
	// ErrNotHeld: the store has no proven namespace of the pod.
	ErrNotHeld = errors.New("no network namespace of the pod is held")
)

// Attempt is a source that was asked, and why what it said was not taken.
type Attempt struct {
	Source Source
	Err    error
}

// NotFoundError: no source has a namespace that is proven to be the pod's. Get it with errors.As(err, &notFound); errors.Is
// finds the errors of its attempts.
type NotFoundError struct {
	UID   types.UID
	Tried []Attempt // of the sources that knew anything; the last is the search by process
}

// Error returns for example "find network namespace of pod 0b1c…: record: network namespace is gone; process: no process …".
func (e *NotFoundError) Error() string {
	tried := make([]string, len(e.Tried))
	for i, a := range e.Tried {
		tried[i] = fmt.Sprintf("%s: %v", a.Source, a.Err)
	}
	return fmt.Sprintf("find network namespace of pod %s: %s", e.UID, strings.Join(tried, "; "))
}

// Unwrap returns the errors of the attempts.
func (e *NotFoundError) Unwrap() []error {
	errs := make([]error, len(e.Tried))
	for i, a := range e.Tried {
		errs[i] = a.Err
	}
	return errs
}

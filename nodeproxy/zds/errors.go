package zds

import (
	"errors"
	"fmt"
)

// errTimeout: the proxy did not answer in time. Its connection is closed, so a late answer is not read.
var errTimeout = errors.New("the proxy did not answer in time")

// errRemoved: while the pod waited for its Add to be sent, it was removed.
var errRemoved = errors.New("the pod was removed meanwhile")

// nackError: the proxy refused a request.
type nackError struct {
	kind   Kind
	uid    string // the pod's
	reason string // the proxy's
}

func (e *nackError) Error() string {
	return fmt.Sprintf("the proxy refused %s of pod %q: %s", e.kind, e.uid, e.reason)
}

// errGone: the connection ended before the request was answered.
var errGone = errors.New("the proxy disconnected")

// errCrowd: the connection made room for one of others.
var errCrowd = errors.New("its control group has the most connections, and another needed one")

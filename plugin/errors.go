package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/apply"
)

// The plugin's own codes. The CNI specification leaves codes from 100 to plugins.
const (
	// codeDiffers: CHECK found that rules which were set up are no longer in force. The message lists the differences.
	codeDiffers uint = 100
	// codeApply: the kernel or the firewall program refused the rules.
	codeApply uint = 101
)

const (
	// maxFailure is the size of the largest error on stdout, in bytes. At every retry the runtime copies it into its log
	// and into its answer to the kubelet, and so into an Event.
	maxFailure = 16 << 10
	// maxMessage is the size of the longest message, in bytes. Escaping quotes may double it.
	maxMessage = 6 << 10
)

// fail makes a CNI error. It shortens long errors among the arguments, but keeps the names of the pod's settings.
func fail(code uint, format string, args ...any) *types.Error {
	for i, a := range args {
		if err, ok := a.(error); ok {
			args[i] = truncate.Error(err, maxMessage)
		}
	}
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// within shortens a CNI error until its JSON has at most maxFailure bytes.
func within(e *types.Error, render func(*types.Error) []byte) *types.Error {
	for limit := maxFailure / 2; len(render(e)) > maxFailure && limit > 0; limit /= 2 {
		e = &types.Error{Code: e.Code, Msg: truncate.Text(e.Msg, limit), Details: truncate.Text(e.Details, limit/2)}
	}
	return e
}

// hint adds advice.
func hint(e *types.Error, format string, args ...any) *types.Error {
	e.Details = fmt.Sprintf(format, args...)
	return e
}

// codeOf makes err a CNI error. The code is for causes that do not imply one.
func codeOf(err error, code uint, doing string) *types.Error {
	var (
		done     *types.Error
		panicked *netnsexec.PanicError
	)
	switch {
	case errors.As(err, &done):
		return done
	case errors.As(err, &panicked):
		panic(panicked)
	case errors.Is(err, netnsexec.ErrHost), errors.Is(err, netnsexec.ErrNotNetNS), errors.Is(err, netnsexec.ErrGone):
		return fail(types.ErrInvalidNetNS, "CNI_NETNS: %v", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fail(types.ErrTryAgainLater, "%s: %v", doing, err)
	case errors.Is(err, apply.ErrNoBackend):
		return fail(types.ErrPluginNotAvailable, "%s: %v", doing, err)
	}
	return fail(code, "%s: %v", doing, err)
}

// asPanic returns a recovered panic with the stack of the goroutine in which it began.
func asPanic(recovered any) *netnsexec.PanicError {
	if p, ok := recovered.(*netnsexec.PanicError); ok { // of another goroutine
		return p
	}
	return &netnsexec.PanicError{Value: recovered, Stack: debug.Stack()}
}

// rescue, when deferred, makes a panic the failure of the function, whose other results stay. The runtime must get JSON, the
// pod must not start, and the log must say how far the run got.
func (r *run) rescue(failure **types.Error) {
	if v := recover(); v != nil {
		p := asPanic(v)
		r.stack = p.Stack
		*failure = fail(types.ErrInternal, "%s: internal error: %v", r.name, p.Value)
	}
}

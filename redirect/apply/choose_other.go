//go:build !linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var errPlatform = fmt.Errorf("%w: rules are put into Linux, this is %s: %w", ErrNoBackend, runtime.GOOS, errors.ErrUnsupported)

// Available returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func Available(Options) error { return errPlatform }

// Kernel returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func Kernel(doer) (redirect.Kernel, error) {
	return redirect.Kernel{}, errPlatform
}

// Choose returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func Choose(context.Context, Namespace, Options) (Backend, error) { return nil, errPlatform }

// Live returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func Live(context.Context, Namespace, Options, ...ruleset.Ruleset) (ruleset.Live, error) {
	return nil, errPlatform
}

// IptablesTraces returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func IptablesTraces(context.Context, Namespace, ruleset.Ownership) (string, error) {
	return "", errPlatform
}

// HandOver returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func HandOver(context.Context, Namespace, ruleset.Ruleset, ruleset.Layout, Options) (Result, error) {
	return Result{}, errPlatform
}

// Route returns an error that is [ErrNoBackend] and errors.ErrUnsupported.
func Route(context.Context, Namespace, ruleset.Ruleset) ([]Unusable, error) { return nil, errPlatform }

//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"sync/atomic"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// fallback is a choice among several backends: the next is taken where one refuses, and has left everything as it was. A program of iptables
// may be there without the modules that its rules need, and only the attempt tells.
type fallback struct {
	all []Backend
	at  atomic.Int32 // in all
}

func (f *fallback) now() Backend { return f.all[f.at.Load()] }

// Name is that of the backend that is tried first, and after an Apply of the one that has applied the rules.
func (f *fallback) Name() ruleset.Backend { return f.now().Name() }

// Apply makes the live rules those of rs, by the first backend that does not refuse them.
func (f *fallback) Apply(ctx context.Context, rs ruleset.Ruleset) (Result, error) {
	var refused []error
	for i := f.at.Load(); ; i++ {
		result, err := f.all[i].Apply(ctx, rs)
		if err == nil {
			f.at.Store(i)
			result.Refused = errors.Join(refused...)
			return result, nil
		}
		var refusal *refusedError
		last := !errors.As(err, &refusal) || ctx.Err() != nil || int(i) == len(f.all)-1
		if refusal != nil {
			err = refusal.err // the next is what it tells of
		}
		if len(refused) > 0 || !last {
			err = fmt.Errorf("%s: %w", f.all[i].Name(), err)
		}
		refused = append(refused, err)
		if last {
			return Result{}, errors.Join(refused...)
		}
	}
}

// Check returns nothing if the rules are in force by any of the backends, else the differences that the first sees.
func (f *fallback) Check(ctx context.Context, rs ruleset.Ruleset) (first []ruleset.Difference, err error) {
	var errs []error
	for i := range f.all {
		diffs, err := f.all[i].Check(ctx, rs)
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(diffs) == 0:
			f.at.Store(int32(i)) //nolint:gosec // three at most
			return nil, nil
		case first == nil:
			first = diffs
		}
	}
	if first == nil {
		return nil, errors.Join(errs...)
	}
	return first, nil
}

// Remove removes the owner's rules; see [Backend].
func (f *fallback) Remove(ctx context.Context, owner ruleset.Ownership) error {
	return f.now().Remove(ctx, owner)
}

// refusedError is the failure of an Apply that has left everything as it was: a program, or the kernel, does not take the rules.
type refusedError struct{ err error }

func (e *refusedError) Error() string {
	return e.err.Error() + "; backend: nftables needs no program, and backend: auto takes what works"
}
func (e *refusedError) Unwrap() error { return e.err }

// refusal wraps the error of an Apply that is undone if another backend may do better: a program ended with a failure, could not be started,
// or did nothing.
func refusal(err error) error {
	var ended *exec.ExitError
	var unstarted *fs.PathError
	switch {
	case errors.Is(err, errNothing):
	case errors.As(err, &ended) && ended.Exited():
	case errors.As(err, &unstarted) && strings.HasPrefix(unstarted.Op, "fork/exec"):
	default:
		return err
	}
	return &refusedError{err}
}

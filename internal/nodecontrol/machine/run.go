package machine

import (
	"context"
	"errors"
	"fmt"
)

// Effects looks at a pod and acts on it.
type Effects interface {
	// Observe finds out what is the case now. An error means that it cannot be told.
	Observe(ctx context.Context) (Actual, error)
	// Do does one thing. After an error it is not known how far it came.
	Do(ctx context.Context, act Action) error
}

// StepError is an action that failed. Get it with errors.As.
type StepError struct {
	Step string
	Err  error
}

// Error returns for example "hand-over: no proxy is connected".
func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }

// rounds bounds the looks and actions of a Run. The second look proves what the first round did; a third allows for something that
// changed meanwhile.
const rounds = 3

// ErrUnsettled: after each round something else was to be done, so something else changes the pod too.
var ErrUnsettled = errors.New("the pod does not stay as it was made")

// Run looks, does what is to be done, and looks again, until nothing is left to do. It returns what it saw first and last;
// seen is false if the last look failed, so that nothing is known. With an error, not all is done.
func Run(ctx context.Context, w Wanted, e Effects) (first, last Actual, seen bool, err error) {
	var untold error // the annotation's failures, which stop nothing
	for round := range rounds {
		if last, err = e.Observe(ctx); err != nil {
			return first, last, false, &StepError{StepLook, err}
		}
		if round == 0 {
			first = last
		}
		acts := Next(w, last)
		if untold != nil {
			acts = withoutReports(acts)
		}
		if len(acts) == 0 {
			return first, last, true, untold
		}
		if err = ctx.Err(); err != nil {
			return first, last, true, &StepError{acts[0].String(), context.Cause(ctx)}
		}
		for _, act := range acts {
			if err = e.Do(ctx, act); err == nil {
				continue
			}
			err = &StepError{act.String(), err}
			if act.reports() {
				untold = err
				continue
			}
			// How far it came has to be seen; what was seen before may be untrue now.
			last, errLook := e.Observe(ctx)
			return first, last, errLook == nil, errors.Join(err, errLook)
		}
	}
	// What was done last has yet to be seen.
	if last, err = e.Observe(ctx); err != nil {
		return first, last, false, &StepError{StepLook, err}
	}
	if acts := Next(w, last); untold == nil && len(acts) > 0 {
		return first, last, true, fmt.Errorf("%w: %s is to be done again", ErrUnsettled, acts[0])
	}
	return first, last, true, untold
}

func withoutReports(acts []Action) (rest []Action) {
	for _, act := range acts {
		if !act.reports() {
			rest = append(rest, act)
		}
	}
	return rest
}

package dialect

import (
	"errors"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect"
)

// SettingsError is an error about a pod's Redirect, with the pod's settings that caused it. Get it with errors.As(err,
// &blamedError). The cause is a [*redirect.LimitError] or a [*redirect.FieldError].
type SettingsError struct {
	// Origins are the settings, without repeats.
	Origins []redirect.Origin
	Err     error
}

// Error returns for example "annotation A, annotation B: redirect: 2000120 rules
// would be made, and 10000 are the most (outbound.cidrs × virtualInterfaces: 2000000)".
func (e *SettingsError) Error() string { return e.Setting() + ": " + e.Err.Error() }

// Setting names the settings, separated by commas.
func (e *SettingsError) Setting() string {
	names := make([]string, len(e.Origins))
	for i, o := range e.Origins {
		names[i] = string(o.Source) + " " + o.Key
	}
	return strings.Join(names, ", ")
}

// Unwrap returns the cause.
func (e *SettingsError) Unwrap() error { return e.Err }

// Blame adds to an error of [redirect.Redirect.Validate] or [redirect.Redirect.Ruleset] the pod's settings that set the
// fields it names, because its reader, the pod's author, knows annotations and not fields. An error about no setting is
// returned as it is, and no error is none.
func (b Reading) Blame(err error) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var parts []error
		for _, part := range joined.Unwrap() {
			parts = append(parts, b.Blame(part))
		}
		return errors.Join(parts...)
	}
	var limit *redirect.LimitError
	var field *redirect.FieldError
	var fields []string
	switch {
	case errors.As(err, &limit):
		for _, p := range limit.Products {
			fields = append(fields, p.Fields...)
		}
	case errors.As(err, &field):
		fields = []string{field.Field}
	}
	blamed := &SettingsError{Err: err}
	for _, f := range fields {
		for _, o := range b.Origins {
			same := func(known redirect.Origin) bool { return known.Source == o.Source && known.Key == o.Key }
			if o.Source != redirect.FromDefault && sets(o.Field, f) && !slices.ContainsFunc(blamed.Origins, same) {
				blamed.Origins = append(blamed.Origins, o)
			}
		}
	}
	if len(blamed.Origins) == 0 {
		return err
	}
	return blamed
}

// sets reports whether setting a field, a path in JSON, sets all or part of the other.
func sets(field, other string) bool {
	inner := func(whole, part string) bool {
		rest, ok := strings.CutPrefix(part, whole)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return field != "" && (inner(field, other) || inner(other, field))
}

package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/meshcni/meshcni/redirect"
)

// Notes collects what a Build function finds out that reads a pod by itself,
// where a [redirect.Schema] does not do. The zero value is ready to use.
type Notes struct {
	// Source is where the settings stand of which Set and Refuse are told; zero:
	// annotations.
	Source redirect.Source

	origins  []redirect.Origin
	warnings []string
	errs     []error
}

func (n *Notes) source() redirect.Source { return cmp.Or(n.Source, redirect.FromAnnotation) }

// Set notes that a setting sets a field of the Redirect, given by its path in
// JSON.
func (n *Notes) Set(field, key, value string) {
	n.Note(redirect.Origin{Field: field, Source: n.source(), Key: key, Value: value})
}

// Note is Set for what stands elsewhere.
func (n *Notes) Note(o redirect.Origin) { n.origins = append(n.origins, o) }

// Default notes that the fields have their defaults, but for those that Set has
// noted.
func (n *Notes) Default(fields ...string) {
	for _, field := range fields {
		if !slices.ContainsFunc(n.origins, func(o redirect.Origin) bool { return o.Field == field }) {
			n.origins = append(n.origins, redirect.Origin{Field: field, Source: redirect.FromDefault})
		}
	}
}

// Refuse notes that a setting's value is wrong. Allowed says, for people,
// what is not.
func (n *Notes) Refuse(key, value, allowed string, err error) {
	n.errs = append(n.errs, &redirect.SettingError{Source: n.source(), Key: key, Value: value, Allowed: allowed, Err: err})
}

// Warn notes what the pod says in vain.
func (n *Notes) Warn(format string, args ...any) {
	n.warnings = append(n.warnings, fmt.Sprintf(format, args...))
}

// Result is what a Build function returns: the Redirect, or, when anything was
// refused, an error with all of it, each a [*redirect.SettingError].
func (n *Notes) Result(r redirect.Redirect) (Result, error) {
	if err := errors.Join(n.errs...); err != nil {
		return Result{Warnings: n.warnings}, err
	}
	return Result{Redirect: r, Origins: n.origins, Warnings: n.warnings}, nil
}

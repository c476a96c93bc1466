package dialect

import (
	"cmp"
	"errors"
	"slices"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

// Notes collects the origins, warnings and errors of a Build function that reads a
// pod without a [redirect.Schema]. The zero value is ready to use.
type Notes struct {
	// Source is the place of the settings of Set and Refuse; zero: annotations.
	Source redirect.Source

	origins  []redirect.Origin
	warnings warning.List
	errs     []error
}

func (n *Notes) source() redirect.Source { return cmp.Or(n.Source, redirect.FromAnnotation) }

// Set records that a setting sets a field, given as a path in JSON.
func (n *Notes) Set(field, key, value string) {
	n.Note(redirect.Origin{Field: field, Source: n.source(), Key: key, Value: value})
}

// Note records an origin of another source.
func (n *Notes) Note(o redirect.Origin) { n.origins = append(n.origins, o) }

// Default records that the fields have their defaults, except those already set.
func (n *Notes) Default(fields ...string) {
	for _, field := range fields {
		if !slices.ContainsFunc(n.origins, func(o redirect.Origin) bool { return o.Field == field }) {
			n.origins = append(n.origins, redirect.Origin{Field: field, Source: redirect.FromDefault})
		}
	}
}

// Refuse records that a setting's value is wrong. Allowed says for people which values are right.
func (n *Notes) Refuse(key, value, allowed string, err error) {
	n.errs = append(n.errs, &redirect.SettingError{Source: n.source(), Key: key, Value: value, Allowed: allowed, Err: err})
}

// Warn records a warning about a setting; see [warning.New].
func (n *Notes) Warn(code warning.Code, key, format string, args ...any) {
	n.warnings = append(n.warnings, warning.New(code, key, format, args...))
}

// Misspelt warns of annotations of the pod that look like one of the keys, and are none; see [redirect.UnknownKeys].
func (n *Notes) Misspelt(annotations map[string]string, keys []string) {
	n.warnings = append(n.warnings, redirect.UnknownKeys(redirect.FromAnnotation, annotations, keys, nil)...)
}

// Reading returns what a Build function returns: the Redirect, or an error with a
// [*redirect.SettingError] for each setting refused. Beside it, the Redirect's Proxy alone stays, for [Dialect].Build.
func (n *Notes) Reading(r redirect.Redirect) (Reading, error) {
	if err := errors.Join(n.errs...); err != nil {
		return Reading{Redirect: redirect.Redirect{Proxy: r.Proxy}, Warnings: n.warnings}, err
	}
	return Reading{Redirect: r, Origins: n.origins, Warnings: n.warnings}, nil
}

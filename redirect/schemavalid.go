package redirect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// ErrSchema: a [Schema] is wrong, whatever the pod. Check with errors.Is(err, redirect.ErrSchema).
var ErrSchema = errors.New("the schema is wrong")

// Validate reports all that is wrong with the Schema, joined: Defaults that are not valid, such as a port of 0, and settings
// that can never be read, or would be about a field that does not exist. Each error matches [ErrSchema].
func (s Schema) Validate() error {
	var errs []error
	if err := s.Defaults.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("%w: defaults: %w", ErrSchema, err))
	}
	if slices.Contains(s.Prefixes, "") {
		errs = append(errs, fmt.Errorf("%w: Prefixes has an empty one, with which every annotation begins", ErrSchema))
	}
	return errors.Join(append(errs, s.validateSettings()...)...)
}

// validateSettings returns an error for each thing that is wrong with a setting, whether a pod has it or not.
func (s Schema) validateSettings() (errs []error) {
	var r Redirect
	for i, setting := range s.Settings {
		for _, wrong := range setting.wrong(fieldOf(&r, setting.Field)) {
			errs = append(errs, fmt.Errorf("%w: setting %d (%s): %s", ErrSchema, i+1, truncate.Text(strings.Join(setting.Keys, ", "), maxReason), wrong))
		}
	}
	return errs
}

// wrong returns what is wrong with a setting of a field; nil is none.
func (s Setting) wrong(field any) (all []string) {
	switch {
	case s.Field == "" && s.Set == nil:
		all = append(all, "it has neither Field nor Set")
	case s.Field != "" && field == nil:
		all = append(all, fmt.Sprintf("a Redirect has no field %s", truncate.Quote(s.Field)))
	case s.Set == nil && !settable(field):
		all = append(all, fmt.Sprintf("nothing is known about how to read field %s: give it a Set function", truncate.Quote(s.Field)))
	}
	if len(s.Keys) == 0 {
		all = append(all, "it has no Keys, so nothing sets it")
	}
	for _, key := range s.Keys {
		if key == "" || strings.ContainsAny(key, " \t\n=") {
			all = append(all, fmt.Sprintf("%s is no key", truncate.Quote(key)))
		}
	}
	if s.Source != "" && s.Source != FromAnnotation && s.Source != FromEnv {
		all = append(all, fmt.Sprintf("it is read from an annotation or the environment, and not from %s", truncate.Quote(string(s.Source))))
	}
	if s.Inherited && s.Source == FromEnv {
		all = append(all, "a variable of the proxy container cannot be Inherited from the namespace")
	}
	if _, ports := field.(*PortSet); s.Add && (!ports || s.Set != nil) {
		all = append(all, "Add is for a field of ports without a Set function")
	}
	return all
}

// settable reports whether a setting of the field needs no Set function.
func settable(field any) bool {
	switch field.(type) {
	case *uint16, *PortSet, *PrefixSet, *[]uint32, *[]string, *bool, *Mode:
		return true
	}
	return false
}

func (s Setting) unsettable() error {
	return fmt.Errorf("%w: the setting of %s has no way to set field %s", ErrSchema, strings.Join(s.Keys, ", "), truncate.Quote(s.Field))
}

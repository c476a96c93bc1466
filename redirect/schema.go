package redirect

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/meshcni/meshcni/internal/brief"
)

// Source says where in a pod a setting stands.
type Source string

// The sources.
const (
	// FromAnnotation is an annotation of the pod.
	FromAnnotation Source = "annotation"
	// FromNamespace is an annotation of the pod's namespace.
	FromNamespace Source = "namespace annotation"
	// FromLabel is a label of the pod.
	FromLabel Source = "label"
	// FromEnv is a variable of the proxy container, given as a literal value.
	FromEnv Source = "env"
	// FromSecurityContext is a field of the proxy container's securityContext.
	FromSecurityContext Source = "securityContext"
	// FromArgs: what a runtime says of a sandbox that is no pod.
	FromArgs Source = "CNI_ARGS"
	// FromDefault is the mesh's default.
	FromDefault Source = "default"
)

// Values is what a pod says about its Redirect. It is a plain value, so that this
// package needs no Kubernetes client libraries; package dialect makes it from
// a Pod.
type Values struct {
	Annotations map[string]string
	// NamespaceAnnotations are those of the pod's namespace; nil when unknown.
	NamespaceAnnotations map[string]string
	// Env are the proxy container's variables that have a literal value.
	Env map[string]string
	// RunAsUser and RunAsGroup are those of the proxy container's
	// securityContext; nil when it has none.
	RunAsUser, RunAsGroup *int64
}

// Setting is one thing that a pod can say about its Redirect.
type Setting struct {
	// Field is the path, in JSON, of what it sets, such as "inbound.ports".
	Field string
	// Source and Keys are where it is said; of several keys the first that is
	// there counts, and the others are deprecated.
	Source Source
	Keys   []string
	// Set parses the value, which may be empty, into r. Its error says what is
	// wrong; Allowed says, for people, what is allowed.
	Set     func(r *Redirect, value string) error
	Allowed string
	// Inherited makes the namespace's annotation count where the pod's is
	// absent; an empty one, of either, counts as absent.
	Inherited bool
	// Lenient makes a value that does not parse count as not set, with a
	// warning, instead of an error.
	Lenient bool
}

// Schema is how a mesh spells a Redirect in a pod. It is data but for the Set
// functions of its settings.
type Schema struct {
	// Defaults is the Redirect of a pod that says nothing.
	Defaults Redirect
	// Settings are applied in order.
	Settings []Setting
	// RunAs makes the proxy container's runAsUser and runAsGroup the proxy's
	// ids. Unset and 0 leave the default: a proxy that runs as root is told
	// from nothing by its id.
	RunAs bool
	// RunAsUser is the same for the user alone. What a setting says of the
	// proxy's user wins over it.
	RunAsUser bool
}

// Origin says where a field of a Redirect comes from.
type Origin struct {
	Field  string `json:"field"`
	Source Source `json:"source"`
	Key    string `json:"key,omitempty"`
	// Value is what was found, as written; empty for a default.
	Value string `json:"value"`
}

// SettingError is one setting of a pod that is refused. Get at it with
// errors.As(err, &settingError); several are joined, see [errors.Join].
type SettingError struct {
	Source  Source
	Key     string
	Value   string
	Allowed string
	Err     error
}

// Error returns for example
// `annotation traffic.sidecar.istio.io/excludeInboundPorts="80,x": "x" is not a port from 0 to 65535 (allowed: ...)`.
// A value that is long is cut, with its length told, and so is what Err says.
func (e *SettingError) Error() string {
	s := fmt.Sprintf("%s=%s: %s", e.Setting(), brief.Quote(e.Value), brief.Text(e.Err.Error(), maxReason))
	if e.Allowed != "" {
		s += " (allowed: " + e.Allowed + ")"
	}
	return s
}

// maxReason is how many bytes a [SettingError] takes of what is wrong with its
// value: enough for one element of it, quoted, and for what is allowed.
const maxReason = 400

// Setting is what the error is about, such as
// "annotation traffic.sidecar.istio.io/excludeInboundPorts".
func (e *SettingError) Setting() string { return string(e.Source) + " " + e.Key }

// Unwrap returns what is wrong with the value.
func (e *SettingError) Unwrap() error { return e.Err }

// Build reads a pod's Redirect. Every setting that is refused is in the error,
// each as a [*SettingError]; the Redirect is then not to be used. Origins tell
// where each field that can be said comes from; warnings what was said in vain.
func (s Schema) Build(g Values) (r Redirect, origins []Origin, warnings []string, err error) {
	r = s.Defaults.Clone()
	var errs []error
	for _, setting := range s.Settings {
		source, key, value, ok := setting.find(g)
		if !ok {
			origins = orDefault(origins, setting.Field)
			continue
		}
		if key != setting.Keys[0] {
			warnings = append(warnings, fmt.Sprintf("%s %s is deprecated: use %s", source, key, setting.Keys[0]))
		}
		switch err := setting.Set(&r, value); {
		case err == nil:
			origins = slices.DeleteFunc(origins, func(o Origin) bool { return o == Origin{Field: setting.Field, Source: FromDefault} })
			origins = append(origins, Origin{Field: setting.Field, Source: source, Key: key, Value: value})
		case setting.Lenient:
			warnings = append(warnings, fmt.Sprintf("%s %s=%s counts as not set: %s", source, key, brief.Quote(value), brief.Text(err.Error(), maxReason)))
			origins = orDefault(origins, setting.Field)
		default:
			errs = append(errs, &SettingError{source, key, value, setting.Allowed, err})
		}
	}
	if s.RunAsUser {
		said := func(o Origin) bool { return o.Field == "proxy.uids" && o.Source != FromDefault }
		if slices.ContainsFunc(origins, said) {
			g.RunAsUser = nil
		}
		g.RunAsGroup = nil
	}
	if s.RunAs || s.RunAsUser {
		ids, err := s.runAs(&r, g)
		origins = mergeOrigins(origins, ids)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Redirect{}, nil, warnings, err
	}
	return r, origins, warnings, nil
}

// orDefault says that a field has its default, unless another setting of the
// same field has said of it already.
func orDefault(origins []Origin, field string) []Origin {
	if slices.ContainsFunc(origins, func(o Origin) bool { return o.Field == field }) {
		return origins
	}
	return append(origins, Origin{Field: field, Source: FromDefault})
}

// mergeOrigins adds to what is known of fields; a default does not hide what
// a setting has said of the same field, nor is it said twice.
func mergeOrigins(origins, more []Origin) []Origin {
	for _, o := range more {
		i := slices.IndexFunc(origins, func(p Origin) bool { return p.Field == o.Field })
		switch {
		case i < 0:
			origins = append(origins, o)
		case o.Source != FromDefault:
			origins[i] = o
		}
	}
	return origins
}

func (s Setting) find(g Values) (source Source, key, value string, ok bool) {
	for _, key := range s.Keys {
		switch {
		case s.Source == FromEnv:
			if value := g.Env[key]; value != "" {
				return FromEnv, key, value, true
			}
		case s.Inherited:
			if value := g.Annotations[key]; value != "" {
				return FromAnnotation, key, value, true
			}
			if value := g.NamespaceAnnotations[key]; value != "" {
				return FromNamespace, key, value, true
			}
		default:
			if value, ok := g.Annotations[key]; ok {
				return FromAnnotation, key, value, true
			}
		}
	}
	return "", "", "", false
}

func (s Schema) runAs(r *Redirect, g Values) ([]Origin, error) {
	var origins []Origin
	var errs []error
	for _, id := range []struct {
		field, key string
		value      *int64
		to         *[]uint32
	}{
		{"proxy.uids", "runAsUser", g.RunAsUser, &r.Proxy.UIDs},
		{"proxy.gids", "runAsGroup", g.RunAsGroup, &r.Proxy.GIDs},
	} {
		switch {
		case id.value == nil || *id.value == 0:
			origins = append(origins, Origin{Field: id.field, Source: FromDefault})
		case *id.value < 0 || *id.value >= math.MaxUint32:
			errs = append(errs, &SettingError{
				FromSecurityContext, id.key, strconv.FormatInt(*id.value, 10), "", fmt.Errorf("not an id from 0 to %d", uint32(NoID-1)),
			})
		default:
			*id.to = []uint32{uint32(*id.value)}
			origins = append(origins, Origin{id.field, FromSecurityContext, id.key, strconv.FormatInt(*id.value, 10)})
		}
	}
	return origins, errors.Join(errs...)
}

// Bool makes a Set function of one that takes a boolean, in any form that
// strconv.ParseBool takes.
func Bool(set func(r *Redirect, on bool)) func(*Redirect, string) error {
	return func(r *Redirect, value string) error {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%s is not a boolean", brief.Quote(value))
		}
		set(r, on)
		return nil
	}
}

// PortsInto makes a Set function for a port list of the grammar.
func PortsInto(field func(*Redirect) *PortSet, g Grammar) func(*Redirect, string) error {
	return into(field, func(v string) (PortSet, error) { return ParsePorts(v, g) })
}

// PrefixesInto makes a Set function for a CIDR list of the grammar.
func PrefixesInto(field func(*Redirect) *PrefixSet, g Grammar) func(*Redirect, string) error {
	return into(field, func(v string) (PrefixSet, error) { return ParsePrefixes(v, g) })
}

// InterfacesInto makes a Set function for a list of interface names.
func InterfacesInto(field func(*Redirect) *[]string) func(*Redirect, string) error {
	return into(field, ParseInterfaces)
}

func into[T any](field func(*Redirect) *T, parse func(string) (T, error)) func(*Redirect, string) error {
	return func(r *Redirect, value string) error {
		v, err := parse(value)
		if err != nil {
			return err
		}
		*field(r) = v
		return nil
	}
}

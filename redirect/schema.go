package redirect

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/warning"
)

// Source is the place of a setting.
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
	// FromArgs is a key of CNI_ARGS, for a sandbox that is no pod.
	FromArgs Source = "CNI_ARGS"
	// FromDefault is the mesh's default.
	FromDefault Source = "default"
)

// Values are the parts of a pod that a [Schema] reads. Package dialect makes them
// from a Pod, so that this package needs no Kubernetes libraries.
type Values struct {
	Annotations map[string]string
	// NamespaceAnnotations are those of the pod's namespace; nil when unknown, empty when it has none.
	NamespaceAnnotations map[string]string
	// Env are the proxy container's variables that have a literal value.
	Env map[string]string
	// RunAsUser and RunAsGroup are those of the proxy container's securityContext; nil when it has none.
	RunAsUser, RunAsGroup *int64
}

// Setting is one setting that a pod may have.
type Setting struct {
	// Field is the field of the Redirect that it sets, as a path in JSON such as "inbound.ports".
	Field string
	// Source is the setting's place: FromAnnotation, the default, or FromEnv.
	Source Source
	// Keys are the annotations or variables that hold it. The first one present counts; all but Keys[0] are deprecated.
	Keys []string
	// Grammar is the set of forms that the value may have.
	Grammar Grammar
	// Set parses the value, which may be empty, into r. Nil parses it by the type of
	// Field: a port, ports, prefixes, ids, interface names, a boolean or the mode.
	Set func(r *Redirect, value string) error
	// Add makes ports add to the default instead of replacing it. It is for settings without Set.
	Add bool
	// Allowed describes the allowed values to people, in errors.
	Allowed string
	// Inherited makes the namespace's annotation count where the pod's is absent.
	// An empty one, of either, counts as absent.
	Inherited bool
	// Lenient makes a bad value count as not set, with a warning, instead of being an error.
	Lenient bool
}

// Schema is a mesh's spelling of a Redirect in a pod.
type Schema struct {
	// Defaults is the Redirect of a pod without settings.
	Defaults Redirect
	// Settings are applied in order.
	Settings []Setting
	// RunAs takes the proxy's ids from the proxy container's runAsUser and runAsGroup.
	// Unset and 0 leave the default: root's id does not identify the proxy.
	RunAs bool
	// RunAsUser is RunAs for the user only. A setting of proxy.uids wins over it.
	RunAsUser bool
	// Prefixes begin the keys of annotations that only the mesh has, such as "traffic.mesh.example/". One that is neither
	// a setting's nor among OtherKeys has no effect, which is a warning. Without prefixes only misspelt keys are found:
	// those that differ from a setting's by one or two typing errors, by case, or by hyphens, underscores and dots.
	Prefixes []string
	// OtherKeys are annotations that the schema does not read, and another part of the mesh does.
	OtherKeys []string
}

// Origin is the source of a field of a Redirect.
type Origin struct {
	Field  string `json:"field"`
	Source Source `json:"source"`
	Key    string `json:"key,omitempty"`
	// Value is the setting as written; empty for a default.
	Value string `json:"value"`
}

// SettingError is a setting that is refused. Get it with
// errors.As(err, &settingError); several are joined by [errors.Join].
type SettingError struct {
	Source  Source
	Key     string
	Value   string
	Allowed string
	Err     error
}

// Error returns for example `annotation traffic.sidecar.istio.io/excludeInboundPorts="80,x": "x" is
// not a port from 0 to 65535 (allowed: ...)`. A long value or Err is cut.
func (e *SettingError) Error() string {
	s := fmt.Sprintf("%s=%s: %s", e.Setting(), truncate.Quote(e.Value), truncate.Text(e.Err.Error(), maxReason))
	if e.Allowed != "" {
		s += " (allowed: " + e.Allowed + ")"
	}
	return s
}

// maxReason bounds the text of SettingError.Err, in bytes: room for one quoted
// element of the value, and for what is allowed.
const maxReason = 400

// Setting names the setting, as in "annotation traffic.sidecar.istio.io/excludeInboundPorts".
func (e *SettingError) Setting() string { return string(e.Source) + " " + e.Key }

// Unwrap returns what is wrong with the value.
func (e *SettingError) Unwrap() error { return e.Err }

// ErrNamespaceUnknown: the pod's namespace is not known, though it decides whether the pod is in the mesh, or what its settings are. Check
// with errors.Is(err, redirect.ErrNamespaceUnknown).
var ErrNamespaceUnknown = errors.New("its namespace is not known")

// ReadsNamespace reports whether a setting may be inherited from the pod's namespace, so that [Schema.Build] needs its
// annotations.
func (s Schema) ReadsNamespace() bool { return slices.ContainsFunc(s.Settings, Setting.readsNamespace) }

func (s Setting) readsNamespace() bool { return s.Inherited && s.Source != FromEnv }

// Build reads a pod's Redirect. The error holds a [*SettingError] for each setting that is refused, and
// [ErrNamespaceUnknown] if that is so;
// only the warnings are then valid. Origins has an entry for each field that a setting can set.
func (s Schema) Build(g Values) (r Redirect, origins []Origin, warnings warning.List, err error) {
	r = s.Defaults.Clone()
	warnings = s.unknown(g)
	errs := s.validateSettings()
	if len(errs) > 0 {
		return Redirect{}, nil, warnings, errors.Join(errs...)
	}
	var unknown []string
	for _, setting := range s.Settings {
		source, key, value, ok := setting.find(g)
		if !ok && g.NamespaceAnnotations == nil && setting.readsNamespace() {
			unknown = append(unknown, setting.Keys...)
		}
		if !ok {
			origins = addOrigin(origins, Origin{Field: setting.Field, Source: FromDefault})
			continue
		}
		if key != setting.Keys[0] {
			warnings = append(warnings, warning.New(warning.Deprecated, key, "%s %s is deprecated: use %s", source, key, setting.Keys[0]))
		}
		switch err := setting.Apply(&r, value); {
		case err == nil:
			origins = addOrigin(origins, Origin{Field: setting.Field, Source: source, Key: key, Value: value})
		case setting.Lenient:
			warnings = append(warnings, warning.New(warning.Invalid, key,
				"%s %s=%s counts as not set: %s", source, key, truncate.Quote(value), truncate.Text(err.Error(), maxReason)))
			origins = addOrigin(origins, Origin{Field: setting.Field, Source: FromDefault})
		default:
			errs = append(errs, &SettingError{source, key, value, setting.Allowed, err})
		}
	}
	if len(unknown) > 0 {
		errs = append(errs, fmt.Errorf("%w, whose annotations may have %s", ErrNamespaceUnknown, strings.Join(unknown, ", ")))
	}
	user, group := g.RunAsUser, g.RunAsGroup
	if s.RunAsUser {
		said := func(o Origin) bool { return o.Field == "proxy.uids" && o.Source != FromDefault }
		if slices.ContainsFunc(origins, said) {
			user = nil
		}
		group = nil
	}
	if s.RunAs || s.RunAsUser {
		origins, err = runAs(&r.Proxy.UIDs, origins, "proxy.uids", "runAsUser", user)
		errs = append(errs, err)
		origins, err = runAs(&r.Proxy.GIDs, origins, "proxy.gids", "runAsGroup", group)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Redirect{}, nil, warnings, err
	}
	return r, origins, warnings, nil
}

// addOrigin adds an origin. A default gives way to whatever else sets the field; the securityContext replaces it.
func addOrigin(origins []Origin, o Origin) []Origin {
	i := slices.IndexFunc(origins, func(p Origin) bool { return p.Field == o.Field })
	switch {
	case i < 0:
		return append(origins, o)
	case o.Source == FromDefault:
	case origins[i].Source == FromDefault || o.Source == FromSecurityContext:
		origins[i] = o
	default:
		return append(origins, o)
	}
	return origins
}

// runAs takes an id of the proxy from its securityContext. Unset and 0 are the default.
func runAs(to *[]uint32, origins []Origin, field, key string, id *int64) ([]Origin, error) {
	if id == nil || *id == 0 {
		return addOrigin(origins, Origin{Field: field, Source: FromDefault}), nil
	}
	value := strconv.FormatInt(*id, 10)
	if *id < 0 || *id >= math.MaxUint32 {
		return origins, &SettingError{FromSecurityContext, key, value, "", fmt.Errorf("not an id from 0 to %d", uint32(NoID-1))}
	}
	*to = []uint32{uint32(*id)}
	return addOrigin(origins, Origin{field, FromSecurityContext, key, value}), nil
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

// Apply parses the value into the setting's field.
func (s Setting) Apply(r *Redirect, value string) error {
	if s.Set != nil {
		return s.Set(r, value)
	}
	switch to := fieldOf(r, s.Field).(type) {
	case *uint16:
		return store(to)(ParsePort(value, s.Grammar))
	case *PortSet:
		ports, err := ParsePorts(value, s.Grammar)
		if s.Add {
			ports = ports.Union(*to)
		}
		return store(to)(ports, err)
	case *PrefixSet:
		return store(to)(parsePrefixes(value, s.Grammar))
	case *[]uint32:
		ids, err := ParseIDs(value)
		if err == nil && slices.Contains(ids, 0) && !s.Grammar.Zero {
			err = errRoot
		}
		return store(to)(ids, err)
	case *[]string:
		return store(to)(parseInterfaces(value))
	case *bool:
		return Bool(func(_ *Redirect, on bool) { *to = on })(r, value)
	case *Mode:
		mode := Mode(value)
		if mode != ModeRedirect && mode != ModeTProxy {
			return fmt.Errorf("%s is no interception mode", truncate.Quote(value))
		}
		*to = mode
		return nil
	}
	return s.unsettable()
}

// store makes a function that stores a parsed value, unless it has an error.
func store[T any](to *T) func(T, error) error {
	return func(v T, err error) error {
		if err == nil {
			*to = v
		}
		return err
	}
}

// fieldOf returns a pointer to the field of r at a path in JSON; nil when there is none.
func fieldOf(r *Redirect, path string) any {
	v := reflect.ValueOf(r).Elem()
	for name := range strings.SplitSeq(path, ".") {
		i := 0
		for v.Kind() == reflect.Struct && i < v.NumField() {
			if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
				break
			}
			i++
		}
		if v.Kind() != reflect.Struct || i == v.NumField() {
			return nil
		}
		v = v.Field(i)
	}
	return v.Addr().Interface()
}

// Bool makes a Set function from one that takes a boolean, read in any form of strconv.ParseBool.
func Bool(set func(r *Redirect, on bool)) func(*Redirect, string) error {
	return func(r *Redirect, value string) error {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%s is not a boolean", truncate.Quote(value))
		}
		set(r, on)
		return nil
	}
}

// SetProxyUser is a Set function for the user that the proxy runs as, 1 to 4294967294.
// Root is refused, because its id does not identify the proxy.
func SetProxyUser(r *Redirect, value string) error {
	id, err := strconv.ParseUint(value, 10, 32)
	switch {
	case err != nil || id == uint64(NoID):
		return fmt.Errorf("%s is not a numeric id", truncate.Quote(value))
	case id == 0:
		return errRoot
	}
	r.Proxy.UIDs = []uint32{uint32(id)}
	return nil
}

var errRoot = errors.New("0 is root: all that runs as root would bypass the mesh")

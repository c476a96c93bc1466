package migration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/migrate/otherplugin"
)

// Setting is one thing that a plugin's objects say.
type Setting struct {
	// Key is a variable, a flag with two dashes, a key of the network configuration such as linkerd.proxy-uid, "volume NAME",
	// "container NAME" or a field of the pod.
	Key   string `json:"key"`
	Value string `json:"value"`
	// From is its place.
	From string `json:"from"`
	// Unread is the reason that the value is not known. Empty: it is.
	Unread string `json:"unread,omitempty"`
}

// credential matches keys that may hold one. A report is handed around.
var credential = regexp.MustCompile(`(?i)token|password|secret`)

// hidden is the setting without a value that may be a credential: no switch, no path and no placeholder.
func (s Setting) hidden() Setting {
	_, err := otherplugin.Truth(s.Value)
	if s.Unread == "" && err != nil && credential.MatchString(s.Key) && !strings.HasPrefix(s.Value, "/") && !strings.HasPrefix(s.Value, "__") {
		s.Value = "(not shown)"
	}
	return s
}

// String is the setting in one line.
func (s Setting) String() string {
	if s.Unread != "" {
		return fmt.Sprintf("%s, whose value is not known: %s (%s)", s.Key, s.Unread, s.From)
	}
	return fmt.Sprintf("%s=%q (%s)", s.Key, s.Value, s.From)
}

// Bounds, far above what an installer has. Who may write the objects is an administrator; a mistake must not cost memory.
const (
	maxValue    = 64 << 10 // bytes of one value
	maxSettings = 500      // of one plugin
)

// ErrTooMuch says that a plugin's objects say more than is looked at.
var ErrTooMuch = fmt.Errorf("more than %d settings, or one of more than %d bytes", maxSettings, maxValue)

// networkConfig is the variable that has the template of the plugin's entry, in all plugins that have one.
const networkConfig = "CNI_NETWORK_CONFIG"

// ConfigMaps returns the names of the ConfigMaps that a DaemonSet's containers take variables from, each once, sorted.
func ConfigMaps(ds *appsv1.DaemonSet) []string {
	names := map[string]bool{}
	for i := range ds.Spec.Template.Spec.Containers {
		c := &ds.Spec.Template.Spec.Containers[i]
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				names[from.ConfigMapRef.Name] = true
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				names[e.ValueFrom.ConfigMapKeyRef.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// ConfigMap is a ConfigMap, or why it is not known.
type ConfigMap struct {
	Data map[string]string
	Err  error
}

// Settings returns what a plugin's DaemonSet and the ConfigMaps that it names say, in a stable order. Variables that the node
// or the pod fills in are no settings. The error is [ErrTooMuch], or names a network configuration that is no JSON.
func Settings(ds *appsv1.DaemonSet, configMaps map[string]ConfigMap) ([]Setting, error) {
	r := reader{where: "DaemonSet " + ds.Namespace + "/" + ds.Name, namespace: ds.Namespace, configMaps: configMaps}
	spec := &ds.Spec.Template.Spec
	main := installer(spec)
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if c != main {
			r.add(Setting{Key: "container " + c.Name, Value: strings.Join(slices.Concat(c.Command, c.Args), " "), From: r.where})
			continue
		}
		r.variables(c)
		r.flags(slices.Concat(c.Command, c.Args))
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			r.add(Setting{Key: "volume " + v.Name, Value: v.HostPath.Path, From: r.where})
		}
	}
	r.object("nodeSelector", spec.NodeSelector, len(spec.NodeSelector) > 0)
	r.object("affinity", spec.Affinity, spec.Affinity != nil)
	if len(r.all) > maxSettings {
		return nil, fmt.Errorf("%s: %w", r.where, ErrTooMuch)
	}
	for i, s := range r.all {
		r.all[i] = s.hidden()
		if len(s.Value) > maxValue {
			return nil, fmt.Errorf("%s: %s: %w", s.From, s.Key, ErrTooMuch)
		}
	}
	return r.all, errors.Join(r.errs...)
}

// installer is the container that installs: the one of that name, which all have, or else the first.
func installer(spec *corev1.PodSpec) *corev1.Container {
	for i := range spec.Containers {
		if spec.Containers[i].Name == "install-cni" {
			return &spec.Containers[i]
		}
	}
	if len(spec.Containers) == 0 {
		return nil
	}
	return &spec.Containers[0]
}

type reader struct {
	where, namespace string
	configMaps       map[string]ConfigMap
	all              []Setting
	errs             []error
}

func (r *reader) add(s Setting) { r.all = append(r.all, s) }

func (r *reader) object(key string, v any, there bool) {
	if there {
		text, err := json.Marshal(v)
		r.errs = append(r.errs, err)
		r.add(Setting{Key: key, Value: string(text), From: r.where})
	}
}

// variables adds the container's, of which the last of a name counts, as it does to the process.
func (r *reader) variables(c *corev1.Container) {
	said := map[string]Setting{}
	for _, from := range c.EnvFrom {
		switch {
		case from.ConfigMapRef != nil:
			name := from.ConfigMapRef.Name
			at := "ConfigMap " + r.namespace + "/" + name
			m, ok := r.configMaps[name]
			if !ok || m.Err != nil {
				said["\x00"+name] = Setting{Key: "all of " + at, From: r.where, Unread: cmp.Or(m.Err, errNotGiven).Error()}
			}
			for key, value := range m.Data {
				said[from.Prefix+key] = Setting{Key: from.Prefix + key, Value: value, From: at}
			}
		case from.SecretRef != nil:
			said["\x00secret "+from.SecretRef.Name] = Setting{Key: "all of Secret " + from.SecretRef.Name, From: r.where, Unread: inSecret}
		}
	}
	for _, e := range c.Env {
		s := Setting{Key: e.Name, Value: e.Value, From: r.where}
		if from := e.ValueFrom; from != nil {
			switch {
			case from.ConfigMapKeyRef != nil:
				name, key := from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key
				s.From = "ConfigMap " + r.namespace + "/" + name + ", key " + key
				m, ok := r.configMaps[name]
				value, has := m.Data[key]
				switch {
				case !ok || m.Err != nil:
					s.Unread = cmp.Or(m.Err, errNotGiven).Error()
				case !has:
					s.Unread = "the ConfigMap has no such key"
				}
				s.Value = value
			case from.SecretKeyRef != nil:
				s.Unread = inSecret
			default:
				delete(said, e.Name) // of the node or the pod
				continue
			}
		}
		said[e.Name] = s
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if s := said[name]; name == networkConfig && s.Unread == "" {
			r.network(s)
		} else {
			r.add(s)
		}
	}
}

const inSecret = "it is in a Secret, which is not read" //nolint:gosec // no credential

var errNotGiven = errors.New("it has not been read")

// flags adds a command line's: --name=value, -name=value, or the value as the next word.
func (r *reader) flags(words []string) {
	for i := 0; i < len(words); i++ {
		word := words[i]
		name := strings.TrimLeft(word, "-")
		switch {
		case name == word && strings.ContainsAny(word, " ;&|"):
			r.add(Setting{Key: "command", Value: word, From: r.where}) // a shell's
		case name == word || name == "" || word == "-c":
			// a program, or the end of the flags
		default:
			name, value, has := strings.Cut(name, "=")
			if !has {
				value = "true"
				if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
					i++
					value = words[i]
				}
			}
			r.add(Setting{Key: "--" + name, Value: value, From: r.where})
		}
	}
}

// network adds the keys of the plugin's entry, nested ones with dots.
func (r *reader) network(s Setting) {
	if len(s.Value) > maxValue {
		r.add(s) // refused by its size
		return
	}
	d := json.NewDecoder(strings.NewReader(s.Value))
	d.UseNumber()
	var entry map[string]any
	if err := d.Decode(&entry); err != nil || d.More() {
		r.add(Setting{Key: s.Key, From: s.From, Unread: fmt.Sprintf("it is no JSON object: %v", cmp.Or(err, errMore))})
		return
	}
	r.flatten("", entry, s.From)
}

var errMore = errors.New("more comes after it")

func (r *reader) flatten(prefix string, entry map[string]any, from string) {
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		switch v := entry[key].(type) {
		case map[string]any:
			r.flatten(prefix+key+".", v, from)
		case string:
			r.add(Setting{Key: prefix + key, Value: v, From: from})
		default:
			var text bytes.Buffer
			e := json.NewEncoder(&text)
			e.SetEscapeHTML(false)
			r.errs = append(r.errs, e.Encode(v))
			r.add(Setting{Key: prefix + key, Value: strings.TrimSpace(text.String()), From: from})
		}
	}
}

package netconf

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/truncate"
)

// Parse reads the configuration that a runtime passes to the plugin, or an entry that an installer wrote. The product's identity gives the
// defaults of run_dir and pod_namespace, and that of the kubeconfig. unknown lists the
// keys that mean nothing to the plugin, which ignores them.
//
// The error names every key that has a wrong type or an unknown value. The Config then holds what could be read, and
// defaults for the rest. For text that is no JSON object, errors.As finds a *json.SyntaxError or a
// *json.UnmarshalTypeError.
func Parse(text []byte, of meshcni.Identity) (c Config, unknown []string, err error) {
	var all map[string]json.RawMessage
	if err = json.Unmarshal(text, &all); err == nil && all == nil {
		err = &json.UnmarshalTypeError{Value: "null", Type: reflect.TypeOf(all)}
	}
	if err != nil {
		return parsed(c, of), nil, err
	}
	p := &parser{}
	var runtime struct { // runtimeConfig's other keys belong to other plugins
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	}
	p.fields("", all, reflect.ValueOf(&c).Elem())
	p.value("runtimeConfig", take(all, "runtimeConfig"), reflect.ValueOf(&runtime).Elem())
	c.Annotations, c.PrevResult = runtime.Annotations, take(all, "prevResult")
	for _, key := range standardKeys {
		delete(all, key)
	}
	p.rest("", all)
	p.unknown = slices.DeleteFunc(p.unknown, func(key string) bool { return strings.HasPrefix(key, "runtimeConfig.") })
	slices.Sort(p.unknown)
	return parsed(c, of), p.unknown, errors.Join(p.errs...)
}

// parsed fills in the defaults of a configuration that was read. The type has none then, and the kubeconfig's does not
// depend on run_dir.
func parsed(c Config, of meshcni.Identity) Config {
	typ := c.Type
	if of = of.WithDefaults(); c.Kubernetes.Kubeconfig == "" {
		c.Kubernetes.Kubeconfig = path.Join(of.RunDir, KubeconfigName)
	}
	c = c.withDefaults(of)
	c.Type = typ
	c.Kubernetes.ExcludeNamespaces = trimmed(c.Kubernetes.ExcludeNamespaces)
	return c
}

// trimmed drops the spaces around names, and empty names.
func trimmed(names []string) []string {
	if names == nil {
		return nil
	}
	out := []string{}
	for _, name := range names {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// standardKeys are keys of the CNI specification that the plugin does not use: those for runtimes, and those for plugins
// that assign addresses.
var standardKeys = []string{
	"cniVersions", "capabilities", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "args", "ipam", "ipMasq", "dns",
}

// take removes a key. A null counts as absent.
func take(keys map[string]json.RawMessage, key string) json.RawMessage {
	raw := keys[key]
	delete(keys, key)
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// parser collects what is wrong and what is unknown.
type parser struct {
	errs    []error
	unknown []string
}

// fields takes the keys of the struct's fields.
func (p *parser) fields(path string, keys map[string]json.RawMessage, into reflect.Value) {
	for i := range into.NumField() {
		key, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ",")
		if key != "-" {
			p.value(path+key, take(keys, key), into.Field(i))
		}
	}
}

// rest makes the keys that nobody took unknown. The specification reserves those that begin with "cni.dev/".
func (p *parser) rest(path string, keys map[string]json.RawMessage) {
	for key := range keys {
		if !strings.HasPrefix(key, "cni.dev/") {
			p.unknown = append(p.unknown, path+key)
		}
	}
}

// value reads one value. An empty string counts as absent.
func (p *parser) value(path string, raw json.RawMessage, into reflect.Value) {
	if raw == nil {
		return
	}
	read := func(want string, value any) bool {
		err := json.Unmarshal(raw, value)
		if err != nil {
			p.wrong(path, "want %s, not %s", want, abbreviate(raw))
		}
		return err == nil
	}
	value := into.Addr().Interface()
	if own, ok := value.(interface {
		parse(*parser, string, json.RawMessage)
	}); ok {
		own.parse(p, path, raw)
		return
	}
	if own, ok := value.(json.Unmarshaler); ok {
		if err := own.UnmarshalJSON(raw); err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				p.wrong(path, "%s", line)
			}
		}
		return
	}
	text, isText := value.(encoding.TextUnmarshaler)
	var s string
	var object map[string]json.RawMessage
	switch kind := into.Kind(); {
	case isText:
		if read("a string", &s) && s != "" {
			if err := text.UnmarshalText([]byte(s)); err != nil {
				p.wrong(path, "%v", err)
			}
		}
	case kind == reflect.Struct:
		if read("an object", &object) {
			p.fields(path+".", object, into)
			p.rest(path+".", object)
		}
	case kind == reflect.Bool:
		read("true or false", value)
	case kind == reflect.Slice:
		read("a list of strings", value)
	case kind == reflect.Map:
		read("an object of strings", value)
	default:
		read("a string", value)
	}
}

// maxWrong bounds the bytes that an error has about one key.
const maxWrong = 400

func (p *parser) wrong(path, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s", path, truncate.Text(fmt.Sprintf(format, args...), maxWrong)))
}

func abbreviate(raw json.RawMessage) string {
	const limit = 60
	if len(raw) > limit {
		return strings.ToValidUTF8(string(raw[:limit]), "") + "…"
	}
	return string(raw)
}

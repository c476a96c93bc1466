package netconf

import (
	"encoding/json"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/text/jsonkeys"
)

// Parse reads the configuration that a runtime passes to the plugin, or an entry that an installer wrote. The product's identity gives the
// defaults of run_dir and pod_namespace, and that of the kubeconfig. unknown lists the keys that this package does not know, those in
// Config.Meshes among them. The plugin ignores what no mesh knows either: see dialect.Set.Unknown.
//
// The error names every key that has a wrong type or an unknown value. The Config then holds what could be read, and
// defaults for the rest. For text that is no JSON object, errors.As finds a *json.SyntaxError or a
// *json.UnmarshalTypeError.
func Parse(text []byte, id meshcni.Identity) (c Config, unknown []string, err error) {
	var all map[string]json.RawMessage
	if err = json.Unmarshal(text, &all); err == nil && all == nil {
		err = &json.UnmarshalTypeError{Value: "null", Type: reflect.TypeOf(all)}
	}
	if err != nil {
		return parsed(c, id), nil, err
	}
	p := &jsonkeys.Parser{}
	var runtime struct { // runtimeConfig's other keys belong to other plugins
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
	}
	p.Fields("", all, reflect.ValueOf(&c).Elem())
	p.Value("runtimeConfig", jsonkeys.Take(all, "runtimeConfig"), reflect.ValueOf(&runtime).Elem())
	c.Annotations, c.PrevResult = runtime.Annotations, jsonkeys.Take(all, "prevResult")
	for _, key := range standardKeys {
		delete(all, key)
	}
	p.Rest("", all)
	for _, key := range p.Unknown {
		if raw := jsonkeys.Take(all, key); raw != nil {
			if c.Meshes == nil {
				c.Meshes = map[string]json.RawMessage{}
			}
			c.Meshes[key] = raw
		}
	}
	p.Unknown = slices.DeleteFunc(p.Unknown, func(key string) bool { return strings.HasPrefix(key, "runtimeConfig.") })
	slices.Sort(p.Unknown)
	return parsed(c, id), p.Unknown, p.Err()
}

// parsed fills in the defaults of a configuration that was read. The type has none then, and the kubeconfig's does not
// depend on run_dir.
func parsed(c Config, id meshcni.Identity) Config {
	typ := c.Type
	id = id.WithDefaults()
	if c.Kubernetes.Kubeconfig == "" {
		c.Kubernetes.Kubeconfig = path.Join(id.RunDir, KubeconfigName)
	}
	c = c.withDefaults(id)
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

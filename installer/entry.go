//go:build linux

package installer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// aloneVersion is the cniVersion of a configuration of the plugin alone.
const aloneVersion = "1.0.0"

// Entry returns the plugin's entry in the network configuration: Plugin with its paths, or PluginConfig, in which these words
// are replaced: __KUBECONFIG_FILEPATH__, __KUBECONFIG_FILENAME__, __KUBERNETES_SERVICE_HOST__, __KUBERNETES_SERVICE_PORT__ and
// __LOG_LEVEL__.
//
// A setting of Plugin that is not the default is added to a template that does not have its key, and without Chained a name and a
// cniVersion are; paths are not.
//
// For a template that no runtime would accept, errors.Is(err, conflist.ErrInvalid).
func (c Config) Entry() ([]byte, error) {
	if c.PluginConfig != "" {
		entry, _, err := c.fromTemplate()
		return entry, err
	}
	e := c.Plugin
	e.RunDir, e.Kubernetes.Kubeconfig = hostpath.OnHost(c.RunDir), c.kubeconfigOnHost()
	if len(c.CNIBinDirs) > 0 {
		e.Kubernetes.CNIBinDir = hostpath.OnHost(c.CNIBinDirs[0])
	}
	if !c.Chained {
		e.CNIVersion, e.Name = aloneVersion, e.Type
	}
	return e.Marshal(), nil
}

// fromTemplate also returns the settings whose keys the template has with another value, which counts.
func (c Config) fromTemplate() (entry []byte, overruled []string, err error) {
	quoted := func(s string) string { return strings.Trim(string(marshalLine(s)), `"`) }
	entry = []byte(strings.NewReplacer(
		"__KUBECONFIG_FILEPATH__", quoted(c.kubeconfigOnHost()),
		"__KUBECONFIG_FILENAME__", quoted(c.KubeconfigName),
		"__KUBERNETES_SERVICE_HOST__", quoted(c.KubernetesHost),
		"__KUBERNETES_SERVICE_PORT__", quoted(c.KubernetesPort),
		"__LOG_LEVEL__", quoted(string(cmp.Or(c.Plugin.LogLevel, netconf.DefaultLogLevel))),
	).Replace(c.PluginConfig))
	f, err := conflist.ParseFile(".conf", entry)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the plugin's configuration template: %w", err)
	}
	if name := f.Plugins()[0].Type; !fileName.MatchString(name) {
		return nil, nil, fmt.Errorf("reading the plugin's configuration template: %w: type %q is no file name", conflist.ErrInvalid, name)
	}
	template, settings := object(entry), c.Plugin
	if !c.Chained { // the plugin refuses a network of its own without them
		settings.CNIVersion, settings.Name = aloneVersion, f.Plugins()[0].Type
	}
	added, overruled := fillGaps(template, object(settings.Marshal()), object(Default(c.Identity).Plugin.Marshal()))
	if added {
		entry = append(marshalLine(template), '\n')
	}
	slices.Sort(overruled)
	return entry, overruled, nil
}

// fillGaps adds to a template the settings that are not the defaults, and returns the keys that the template has otherwise.
func fillGaps(template, settings, defaults map[string]any) (added bool, overruled []string) {
	for key, value := range settings {
		given, has := template[key]
		has = has && given != nil && given != "" // which the plugin takes for absent
		inner, nested := value.(map[string]any)
		into, isObject := given.(map[string]any)
		switch {
		case key == "type", reflect.DeepEqual(value, defaults[key]), reflect.DeepEqual(value, given):
		case nested && (isObject || !has):
			if into == nil {
				into = map[string]any{}
			}
			byDefault, _ := defaults[key].(map[string]any) // an object that is left out where it says nothing has none
			more, others := fillGaps(into, inner, byDefault)
			overruled = append(overruled, others...)
			if more {
				template[key], added = into, true
			}
		case has:
			overruled = append(overruled, key)
		default:
			template[key], added = value, true
		}
	}
	return added, overruled
}

// object decodes a valid JSON object and keeps its numbers as they are.
func object(data []byte) map[string]any {
	var o map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	_ = d.Decode(&o)
	return o
}

// entry returns the entry and its type, the default one if the entry is invalid.
func (c Config) entry() (data []byte, typ string, err error) {
	if data, err = c.Entry(); err == nil {
		var f *conflist.File
		if f, err = conflist.ParseFile(".conf", data); err == nil {
			return data, f.Plugins()[0].Type, nil
		}
	}
	return nil, c.ownType(), err
}

// pluginType is the entry's type: the name of the binary in the runtime's directory.
func (c Config) pluginType() string {
	_, typ, _ := c.entry()
	return typ
}

// agentNamespace is the namespace of the agent's own pods, as the plugin knows it.
func (c Config) agentNamespace() string {
	data, err := c.Entry()
	if err != nil {
		return c.Plugin.PodNamespace
	}
	e, _, _ := netconf.Parse(data, c.Identity)
	return e.PodNamespace
}

// marshalLine encodes what always can be, without escapes for HTML.
func marshalLine(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

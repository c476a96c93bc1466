package doctest

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// keyRow is a row of the table of the plugin's keys: the key, an example or default as JSON, and the rest.
var keyRow = regexp.MustCompile("^\\| `([a-z_.]+)` \\| (?:`([^`]*)`)? *\\| ")

// TestPluginKeys: the plugin takes each key that the reference has, with the default that it gives, and the reference
// has each key that the plugin takes.
func TestPluginKeys(t *testing.T) {
	_, section, ok := strings.Cut(read(t, reference), "\n## The plugin's configuration\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	documentedKeys := map[string]string{}
	for line := range strings.Lines(section) {
		if m := keyRow.FindStringSubmatch(line); m != nil {
			documentedKeys[m[1]] = m[2]
		}
	}
	assert.ElementsMatch(t, pluginKeys("", reflect.TypeFor[netconf.Config]()), keysOf(documentedKeys), "keys of %s, and those that plugin/netconf reads", reference)

	const standard = `"cniVersion": "1.0.0", "name": "pods", "type": "meshcni"`
	plain, _, err := netconf.Parse([]byte("{" + standard + "}"))
	require.NoError(t, err)
	for key, byDefault := range documentedKeys {
		if byDefault == "" || key == "dialect" { // whose default is the plugin's, not the configuration's
			continue
		}
		value := json.RawMessage(byDefault)
		if !json.Valid(value) {
			value = json.RawMessage(strconv.Quote(byDefault))
		}
		text := strconv.Quote(key) + ": " + string(value)
		if outer, inner, ok := strings.Cut(key, "."); ok {
			text = strconv.Quote(outer) + ": {" + strconv.Quote(inner) + ": " + string(value) + "}"
		}
		got, _, err := netconf.Parse([]byte("{" + standard + ", " + text + "}"))
		require.NoError(t, err, key)
		if len(got.Kubernetes.ExcludeNamespaces) == 0 {
			got.Kubernetes.ExcludeNamespaces = nil
		}
		assert.Equal(t, plain, got, "%s is not the default of %s", byDefault, key)
	}
}

func keysOf[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// pluginKeys are the keys of the plugin's own.
func pluginKeys(path string, config reflect.Type) (keys []string) {
	for i := range config.NumField() {
		key, _, _ := strings.Cut(config.Field(i).Tag.Get("json"), ",")
		switch kind := config.Field(i).Type.Kind(); {
		case key == "-", key == "cniVersion", key == "name", key == "type": // the runtime's, and the specification's
		case kind == reflect.Struct:
			keys = append(keys, pluginKeys(key+".", config.Field(i).Type)...)
		default:
			keys = append(keys, path+key)
		}
	}
	return keys
}

package doctest

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/plugin/netconf"
)

// keyRow is a row of the table of the plugin's keys: the key, an example or default as JSON, and the rest.
var keyRow = regexp.MustCompile("^\\| `([a-z_.]+)` \\| (?:`([^`]*)`)? *\\| ")

// TestPluginKeys: the reference lists the keys that the plugin reads, no more and no fewer, each with its default.
func TestPluginKeys(t *testing.T) {
	_, section, ok := strings.Cut(read(t, reference), "\n## The plugin's configuration\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]string{}
	for line := range strings.Lines(section) {
		if m := keyRow.FindStringSubmatch(line); m != nil {
			documented[m[1]] = m[2]
		}
	}
	keys := append(keysOf("", reflect.TypeFor[netconf.Config]()), keysOf("kubernetes.", reflect.TypeFor[netconf.Kubernetes]())...)
	assert.ElementsMatch(t, keys, slices.Collect(maps.Keys(documented)), "keys of plugin/netconf, and of %s", reference)

	const standard = `"cniVersion": "1.0.0", "name": "pods", "type": "meshcni"`
	plain, _, err := netconf.Parse([]byte("{" + standard + "}"))
	require.NoError(t, err)
	for key, byDefault := range documented {
		if byDefault == "" || key == "dialect" { // whose default is the plugin's, not the configuration's
			continue
		}
		value := byDefault
		if !json.Valid([]byte(value)) {
			value = strconv.Quote(byDefault)
		}
		text := strconv.Quote(key) + ": " + value
		if outer, inner, ok := strings.Cut(key, "."); ok {
			text = strconv.Quote(outer) + ": {" + strconv.Quote(inner) + ": " + value + "}"
		}
		got, unknown, err := netconf.Parse([]byte("{" + standard + ", " + text + "}"))
		require.NoError(t, err, key)
		assert.Empty(t, unknown, "keys that the plugin ignores")
		if len(got.Kubernetes.ExcludeNamespaces) == 0 {
			got.Kubernetes.ExcludeNamespaces = nil
		}
		assert.Equal(t, plain, got, "%s is not the default of %s", byDefault, key)
	}
}

// keysOf are the keys of a struct in JSON, less those of the specification and the object that has keys of its own.
func keysOf(prefix string, config reflect.Type) (keys []string) {
	for i := range config.NumField() {
		key, _, _ := strings.Cut(config.Field(i).Tag.Get("json"), ",")
		if !slices.Contains([]string{"-", "cniVersion", "name", "type", "kubernetes"}, key) {
			keys = append(keys, prefix+key)
		}
	}
	return keys
}

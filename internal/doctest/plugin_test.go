package doctest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// pluginKeys is the table of the plugin's keys, each with its default, and the agent's flag that says what it does.
func pluginKeys(t *testing.T, agents []flagHelp) string {
	t.Helper()
	plain, _, err := netconf.Parse([]byte(`{"cniVersion": "1.0.0", "name": "pods", "type": "meshcni"}`), meshcni.Identity{})
	require.NoError(t, err)
	keys := append(keysOf(t, "", reflect.ValueOf(plain)), keysOf(t, "kubernetes.", reflect.ValueOf(plain.Kubernetes))...)
	for _, d := range builtin.All() {
		if d.Configure != nil {
			keys = append(keys, keyValue{key: d.Name})
		}
	}
	var b strings.Builder
	for _, k := range keys {
		flag := strings.ReplaceAll(strings.TrimPrefix(k.key, "kubernetes."), "_", "-")
		means, value := "", k.value
		switch {
		case slices.Contains(builtin.Names(), k.key): // an object
			means = ": [settings](dialects/" + k.key + ".md#settings) of that dialect"
		case k.key == "kubernetes.kubeconfig":
			means = ": in `--run-dir`"
		default:
			at := slices.IndexFunc(agents, func(f flagHelp) bool { return f.name == flag })
			require.GreaterOrEqual(t, at, 0, "no flag of the agent is the key %s", k.key)
			value = cmp.Or(value, agents[at].byDefault) // which the plugin's program chooses, as the agent's does
		}
		if value != "" {
			value = " (`" + value + "`)"
		}
		fmt.Fprintf(&b, "- `%s`%s%s\n", k.key, value, means)
	}
	return b.String()
}

type keyValue struct{ key, value string }

// keysOf are the keys of a struct in JSON with their values, less those of the specification and the object that has keys of
// its own.
func keysOf(t *testing.T, prefix string, config reflect.Value) (keys []keyValue) {
	t.Helper()
	for i := range config.NumField() {
		key, _, _ := strings.Cut(config.Type().Field(i).Tag.Get("json"), ",")
		if slices.Contains([]string{"-", "cniVersion", "name", "type", "kubernetes"}, key) {
			continue
		}
		text, err := json.Marshal(config.Field(i).Interface())
		require.NoError(t, err)
		value := strings.Trim(string(text), `"`)
		if slices.Contains([]string{"null", "{}"}, value) {
			value = ""
		}
		keys = append(keys, keyValue{prefix + key, value})
	}
	return keys
}

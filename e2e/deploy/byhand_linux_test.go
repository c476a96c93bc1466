package deploy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/nodecmd"
)

// TestProgramsByHand: a program that is run in the agent's container, without arguments, knows what the agent's arguments say.
func TestProgramsByHand(t *testing.T) {
	t.Parallel()
	names, all := settingsCases(t)
	for i, rendered := range renderAll(t, all) {
		m := newMachine(t, rendered)
		want, err := nodecmd.Program{Env: m.env}.Parse(append([]string{"run"}, m.args()...))
		require.NoError(t, err, names[i])
		byHand := nodecmd.Program{Env: func(name string) (string, bool) {
			value, ok := m.env(name)
			switch name {
			case "MESHCNI_BIN_SOURCE_DIR":
				value, ok = "/opt/meshcni/bin", true
			case "MESHCNI_SERVICE_ACCOUNT_DIR":
				value, ok = "/var/run/secrets/kubernetes.io/serviceaccount", true
			}
			if strings.HasPrefix(name, "MESHCNI_REPAIR_") || !strings.HasPrefix(value, "/") {
				return strings.NewReplacer("$(NODE_NAME)", "node-1", "$(POD_IP)", "10.0.0.1").Replace(value), ok
			}
			paths := strings.Split(value, ",")
			for i := range paths {
				paths[i] = m.path(paths[i])
			}
			return strings.Join(paths, ","), ok
		}}
		want.StartSocket = "" // an argument, since the startup probe's command names it too
		got, err := byHand.Parse([]string{"run"})
		require.NoError(t, err, names[i])
		if want.MetricsAddress == "" {
			got.MetricsAddress = "" // an empty variable is none
		}
		assert.Equal(t, want, got, names[i])
	}
}

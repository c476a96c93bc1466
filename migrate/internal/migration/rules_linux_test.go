package migration_test

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/migrate/otherplugin"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// left is a pod with the rules that a peer leaves in it.
type left struct {
	Peer    string            `json:"peer"`
	Verdict migration.Verdict `json:"verdict"`
	// Causes are parts of what is said, each of them.
	Causes    []string   `json:"causes"`
	Pod       corev1.Pod `json:"pod"`
	Iptables  string     `json:"iptables"`
	Ip6tables string     `json:"ip6tables"`
	Nft       string     `json:"nft"`
}

func load(t *testing.T, ns *netnsexec.NetNS, rules, program string, args ...string) {
	t.Helper()
	if rules == "" {
		return
	}
	netnstest.Require(t, netnstest.Binary(program))
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(rules), &out, &out
	require.NoError(t, ns.Run(cmd), "%s\n%s", &out, rules)
}

// TestRules: each peer's rules are put into the kernel as that peer leaves them, read as an agent reads them, and judged.
func TestRules(t *testing.T) {
	files, err := filepath.Glob("testdata/rules/*.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 20)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			var is left
			require.NoError(t, yaml.UnmarshalStrict(b, &is))
			variants := []string{"nft", "legacy"}
			if is.Nft != "" {
				variants = variants[:1]
			}
			for _, variant := range variants {
				ns := netnstest.New(t)
				load(t, ns, is.Iptables, "iptables-"+variant+"-restore")
				load(t, ns, is.Ip6tables, "ip6tables-"+variant+"-restore")
				load(t, ns, is.Nft, "nft", "-f", "-")
				live, err := apply.Live(t.Context(), ns, apply.Options{Runner: ns.Sandbox()})
				require.NoError(t, err)
				require.NotEmpty(t, live)
				is.judge(t, variant, migration.Observed{Live: live})
			}
		})
	}
}

// TestManyRules: a rule with a large set is as many rules as it takes, of which the packets would be too many to trace.
func TestManyRules(t *testing.T) {
	rule := ruleset.LiveRule{
		Backend: ruleset.BackendNftables, Family: ruleset.IPv4, Table: "inet x", Chain: "o", Position: 1, Text: "ip daddr @s return",
		Hook: &ruleset.Hook{Type: "nat", Point: "output", Priority: -100, Policy: "accept"},
	}
	for i := range 501 {
		dst := netip.AddrFrom4([4]byte{10, 1, byte(i / 256), byte(i % 256)})
		rule.Rules = append(rule.Rules, ruleset.Rule{Dst: ruleset.MatchPrefix(netip.PrefixFrom(dst, 32)), Target: ruleset.Target{Action: ruleset.ActionReturn}})
	}
	l := left{Peer: "istio-cni", Verdict: migration.Unknown, Causes: []string{"no more than 400 are compared"}}
	l.Pod.Annotations = map[string]string{"sidecar.istio.io/status": "{}"}
	l.Pod.Spec.Containers = []corev1.Container{{Name: "istio-proxy"}}
	l.judge(t, "nft", migration.Observed{Live: ruleset.Live{rule}})
}

func (l *left) judge(t *testing.T, variant string, o migration.Observed) {
	t.Helper()
	peer, ok := migration.Named(migration.Sources(facts.All(), otherplugin.Known()), l.Peer)
	require.True(t, ok)
	plan := migration.Make(meshcni.Identity{}, peer, []migration.Setting{{Key: "AMBIENT_ENABLED", Value: "true"}})
	if l.Peer != "istio-cni" {
		plan = migration.Make(meshcni.Identity{}, peer, nil)
	}
	meshes, err := dialect.Configure(builtin.All(), plan.Entry())
	require.NoError(t, err)
	j := migration.Judge{Plan: plan, Meshes: meshes, Facts: facts.All()}
	x, err := j.Explain(&l.Pod, &corev1.Namespace{})
	require.NoError(t, err)
	require.True(t, x.Decision.Selected, x.Decision)
	j.Add(t.Context(), x, o)
	groups := j.Groups()
	require.Len(t, groups, 1)
	g := groups[0]
	assert.Equal(t, l.Verdict, g.Verdict, "%s: %s\n%s\nwhere ours are\n%s", variant, g.Cause, strings.Join(g.Example, "\n"), x.Plan.Ruleset)
	assert.Equal(t, migration.Live, g.Evidence)
	for _, cause := range l.Causes {
		assert.Contains(t, g.Cause, cause, "%s: %s", variant, strings.Join(g.Example, "\n"))
	}
}

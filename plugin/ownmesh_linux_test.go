package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// labelled is a mesh of one's own: a label of the namespace selects its pods, which inherit ports from it. Nothing else says that it
// reads the namespace.
func labelled() dialect.Dialect {
	r := redirect.Default()
	r.Names.ChainPrefix = "OWN_"
	return dialect.Dialect{
		Name: "own", Names: r.Names,
		Policy: selection.Policy{Selectors: []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"own/mesh": "on"}}}}},
		Build: dialect.FromSchema(redirect.Schema{Defaults: r, Settings: []redirect.Setting{
			{Field: "inbound.excludePorts", Keys: []string{"own/skip"}, Inherited: true},
		}}),
	}
}

// TestOwnMeshByNamespace: in a real namespace, with the pod from the API server or from the agent's socket, the namespace is asked for
// and heeded; and a pod whose namespace cannot be had does not start.
func TestOwnMeshByNamespace(t *testing.T) {
	n := newNode(t, "nftables")
	pod := caseOf(t, "fam-dual")
	space := func(value string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: pod.Namespace, Labels: map[string]string{"own/mesh": value}, Annotations: map[string]string{"own/skip": "9090"},
		}}
	}
	inherits := labelled() // and selects every pod
	inherits.Policy.Selectors = nil
	for name, c := range map[string]struct {
		mesh     dialect.Dialect
		label    string
		agent    *agentsock.Pod
		forbid   bool
		captured bool
		code     int
	}{
		"by the API server":              {mesh: labelled(), label: "on", captured: true},
		"not labelled":                   {mesh: labelled(), label: "off"},
		"by the agent":                   {mesh: labelled(), label: "off", agent: &agentsock.Pod{Pod: pod, Namespace: space("on")}, captured: true},
		"an agent without the namespace": {mesh: labelled(), label: "on", agent: &agentsock.Pod{Pod: pod}, captured: true},
		"it cannot be had":               {mesh: labelled(), label: "on", forbid: true, code: 11},
		"only inherited":                 {mesh: inherits, label: "off", captured: true},
		"only inherited, by the agent":   {mesh: inherits, agent: &agentsock.Pod{Pod: pod, Namespace: space("off")}, captured: true},
		"inherited, and cannot be had":   {mesh: inherits, forbid: true, code: 11},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			n.server.SetNamespace(space(c.label))
			n.server.Handle(func(_ int, w http.ResponseWriter, r *http.Request) bool {
				refused := c.forbid && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/"+pod.Namespace) && !strings.Contains(r.URL.Path, "/pods/")
				if refused {
					apiservertest.WriteStatus(w, http.StatusForbidden, "namespaces is forbidden")
				}
				return refused
			})
			a := n.attach(pod, ns)
			config := a.Config.(object)
			config["dialect"], config["add_deadline"], config["run_dir"] = "own", "1s", t.TempDir()
			if c.agent != nil {
				config["add_deadline"] = "30s"
				serveAgent(t, config["run_dir"].(string), *c.agent)
			} else if !c.forbid {
				config["add_deadline"] = "30s"
			}
			stdin, err := json.Marshal(config)
			require.NoError(t, err)
			env := map[string]string{
				"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "own", "CNI_NETNS": ns.Path(), "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
				"CNI_ARGS": args(pod.Namespace, pod.Name, string(pod.UID)),
			}
			p := plugin.Plugin{Dialects: []dialect.Dialect{c.mesh}, OpenPods: kubepod.Open}
			var out, stderr bytes.Buffer
			exit := p.Run(t.Context(), plugin.IO{
				Args: []string{"own-cni"}, Getenv: func(key string) string { return env[key] }, Stdin: bytes.NewReader(stdin), Stdout: &out, Stderr: &stderr,
			})
			outcome := binarytest.Outcome{Exit: exit, Stdout: out.Bytes(), Stderr: stderr.Bytes()}
			if c.code != 0 {
				code, message := outcome.Failure()
				assert.Equal(t, c.code, code, message)
				assert.NotContains(t, nftRules(t, ns), "OWN_")
				return
			}
			require.Zero(t, exit, "%s\n%s", &out, &stderr)
			table := nftRules(t, ns)
			assert.Equal(t, c.captured, strings.Contains(table, "OWN_OUTPUT"), table)
			assert.Equal(t, c.captured, strings.Contains(table, "9090"), "what it inherits: %s", table)
		})
	}
}

// nftRules is what nft lists in the namespace.
func nftRules(t *testing.T, ns *netnsexec.NetNS) string {
	t.Helper()
	var text bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "nft", "list", "ruleset")
	cmd.Stdout = &text
	require.NoError(t, ns.Run(cmd))
	return text.String()
}

// serveAgent serves an answer on the agent's socket in a run_dir.
func serveAgent(t *testing.T, dir string, answer agentsock.Pod) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	s := &agentsock.Server{Handler: podOnly{answer: answer}}
	go func() { served <- s.Serve(ctx, filepath.Join(dir, agentsock.Name)) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-served)
	})
	client := agentsock.Client{Path: filepath.Join(dir, agentsock.Name)}
	require.Eventually(t, func() bool {
		_, err := client.Pod(context.Background(), status.ID{UID: string(answer.Pod.UID)})
		return err == nil
	}, netnstest.Patience, time.Millisecond)
}

// TestInvalidDialect: ADD and STATUS call it an error of the configuration, with all that is wrong.
func TestInvalidDialect(t *testing.T) {
	t.Parallel()
	broken := labelled()
	broken.Names.ChainPrefix, broken.Policy.Selectors = "OTHER_", []selection.Selector{}
	for _, command := range []string{"ADD", "STATUS"} {
		for _, list := range [][]dialect.Dialect{{broken}, {labelled(), broken}} {
			c := newCall()
			c.env["CNI_COMMAND"], c.plugin.Dialects, c.config["cniVersion"] = command, list, "1.1.0"
			delete(c.config, "dialect")
			if command == "ADD" && len(list) > 1 { // a mesh that is not configured keeps no pod from starting
				assert.Zero(t, c.run(t).exit)
				continue
			}
			c.run(t).fails(t, 7, "dialect own", "Selectors is an empty list", "OTHER_")
			assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
		}
	}
}

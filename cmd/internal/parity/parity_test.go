// Package parity tests that the playground's engine, as a browser runs it, says what the command line says.
package parity

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect/builtin"
	links "github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/internal/playground/engine"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// maxEngine bounds what a visitor downloads, in bytes: the module, compressed. It is mostly the types of Kubernetes and
// what their package links; a hundredth is each mesh's facts and the texts of all codes. Raise it knowingly.
const maxEngine = 4_800_000

// playground is its directory.
const playground = "../../../playground"

// TestMain gives the tests a directory that goes with them.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "meshcni-playground")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(dir, "engine.wasm")
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var built string

// module builds the engine for browsers, once.
func module(t *testing.T) string {
	t.Helper()
	path := built
	if _, err := os.Stat(path); err == nil {
		return path
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./wasm")
	build.Dir = playground
	build.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// question is a recorded pod and how the command line is asked about it.
type question struct {
	name      string
	args      []string // beside -f -
	pod       string
	namespace string
	config    string
}

// recorded are all pods in testdata, by all meshes at once and by each in turn, with their namespace and without, and the page's own
// examples. With the tag long each pod is asked of every mesh.
func recorded(t *testing.T) (all []question) {
	t.Helper()
	everyone := strings.Join(builtin.Names(), ",")
	configOf := func(names string) string {
		b, err := json.Marshal(map[string]any{"dialect": strings.Split(names, ",")})
		require.NoError(t, err)
		return string(b)
	}
	turn := 0
	for _, dir := range []string{"../../../testdata", "../../redirectcmd/testdata", "../../../examples"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "golden" {
				return fs.SkipDir
			}
			if ext := filepath.Ext(path); d.IsDir() || ext != ".json" && ext != ".yaml" || d.Name() == "expected.json" {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			turn++
			for i, names := range append([]string{everyone}, builtin.Names()...) {
				for j, namespace := range []string{"", links.Namespace} {
					if !longtest.On && ((turn+i)%2 != j || i > 0 && turn%len(builtin.Names()) != i-1) {
						continue
					}
					all = append(all, question{name: path + " " + names, args: []string{"--dialect", names}, pod: string(text), namespace: namespace, config: configOf(names)})
				}
			}
			return nil
		}))
	}
	for _, e := range links.Examples() {
		var c struct{ Dialect any }
		require.NoError(t, json.Unmarshal(e.Config, &c))
		names, ok := c.Dialect.(string)
		if !ok {
			names = everyone
		}
		all = append(all,
			question{name: e.Title, args: []string{"--dialect", names}, pod: e.Pod, namespace: e.Namespace, config: string(e.Config)},
			question{
				name: e.Title + ", strict", pod: e.Pod, namespace: e.Namespace,
				args: []string{"--dialect", names, "--uncaptured-family", "drop", "--refuse-proxy-uid", "--refuse-net-raw", "--exclude-namespaces", "kube-system", "--exclude-namespace-selector", "mesh=off", "--ambient-dns-capture=false", "--ambient-ipv6=false"},
				config: `{"dialect": ` + quoted(strings.Split(names, ",")) + `, "uncaptured_family": "drop", "refuse_proxy_uid": true, "refuse_net_raw": true,
					"kubernetes": {"exclude_namespaces": ["kube-system"], "exclude_namespace_selector": "mesh=off"}, "ambient": {"dns_capture": false, "ipv6": false}}`,
			},
			question{
				name: e.Title + ", with selectors", pod: e.Pod, namespace: e.Namespace,
				args:   []string{"--dialect", "ambient", "--ambient-enablement-selectors", selectors, "--ambient-probe-ipv4", "192.0.2.7", "--ambient-probe-ipv6", "2001:db8::7"},
				config: `{"dialect": "ambient", "ambient": {"enablement_selectors": ` + quoted(selectors) + `, "probe_ipv4": "192.0.2.7", "probe_ipv6": "2001:db8::7"}}`,
			})
	}
	return all
}

// selectors are what a person types.
const selectors = "- podSelector: {matchLabels: {app: cart}}\n- namespaceSelector:\n    matchExpressions: [{key: mesh, operator: Exists}]\n"

// quoted is a value in JSON.
func quoted(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// ask puts the requests to the module, as the page does, and returns the answers.
func ask(t *testing.T, module string, requests []engine.Request) []string {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	var in, out, stderr bytes.Buffer
	require.NoError(t, json.NewEncoder(&in).Encode(requests))
	cmd := exec.Command("node", filepath.Join(playground, "ask.mjs"), module, filepath.Join(strings.TrimSpace(string(goroot)), "lib", "wasm", "wasm_exec.js"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &stderr
	require.NoError(t, cmd.Run(), "%s", &stderr)
	var answers []string
	require.NoError(t, json.Unmarshal(out.Bytes(), &answers))
	require.Len(t, answers, len(requests))
	return answers
}

// TestSaysWhatExplainSays: byte for byte, for every recorded pod, by every mesh, with its namespace known and not.
func TestSaysWhatExplainSays(t *testing.T) {
	netnstest.Require(t, netnstest.Binary("node"))
	questions := recorded(t)
	require.Greater(t, len(questions), 200)
	requests := make([]engine.Request, len(questions))
	for i, q := range questions {
		requests[i] = engine.Request{Op: "explain", Subject: engine.Subject{Pod: q.pod, Namespace: q.namespace, Config: json.RawMessage(q.config)}}
	}
	answers := ask(t, module(t), requests)
	explained := 0
	for i, q := range questions {
		files := map[string]string{"pod": q.pod, "namespace": q.namespace}
		var out, errOut bytes.Buffer
		p := redirectcmd.Program{Stdout: &out, Stderr: &errOut, ReadFile: func(name string) ([]byte, error) { return []byte(files[name]), nil }}
		args := append([]string{"explain", "-f", "pod", "-o", "json", "--config", "none"}, q.args...)
		if q.namespace != "" {
			args = append(args, "--namespace-file", "namespace")
		}
		code := p.Main(context.Background(), args)
		if out.Len() == 0 { // no decision was reached: the file holds something else
			require.NotZero(t, code)
			var f engine.Failure
			require.NoError(t, json.Unmarshal([]byte(answers[i]), &f), q.name)
			require.NotEmpty(t, f.Error.Text, q.name)
			assert.Contains(t, errOut.String(), strings.Split(f.Error.Text, "\n")[0], q.name)
			continue
		}
		explained++
		require.Equal(t, out.String(), answers[i], q.name)
	}
	assert.Greater(t, explained, 150)
}

// TestSize holds down what a visitor downloads.
func TestSize(t *testing.T) {
	text, err := os.ReadFile(module(t))
	require.NoError(t, err)
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	require.NoError(t, err)
	_, err = io.Copy(w, bytes.NewReader(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	t.Logf("%d bytes, compressed %d", len(text), packed.Len())
	assert.Less(t, packed.Len(), maxEngine)
}

package redirectcmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// list is a network's list with an entry of the plugin.
func list(entry string) string {
	return `{"cniVersion":"1.0.0","name":"k8s","plugins":[{"type":"calico"},` + entry + `]}`
}

const excludes = `{"type":"meshcni","kubernetes":{"exclude_namespaces":["kube-system","shop"]}}`

// node makes a directory of network configurations.
func node(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// TestInstalledConfiguration: on a node, what the plugin is told counts, unless a flag says otherwise; and which
// configuration counts is said.
func TestInstalledConfiguration(t *testing.T) {
	t.Parallel()
	trace := []string{"trace", "-f", "web.yaml", "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000"}
	for name, tt := range map[string]struct {
		files  map[string]string
		args   []string
		call   call
		code   int
		out    []string
		errOut []string
		not    string
	}{
		"excluded": {
			files: map[string]string{"10-calico.conflist": list(excludes)},
			out:   []string{"pod shop/web-1 is not in the mesh (istio)\n  excluded-namespace: ", "\n  configuration: DIR/10-calico.conflist\n"},
		},
		"excluded, JSON": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: []string{"explain", "-f", "web.yaml", "-o", "json"},
			out: []string{`"reason": "excluded-namespace"`, `"configuration": {` + "\n" + `    "file": "DIR/10-calico.conflist"`},
		},
		"a packet": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: trace,
			out: []string{"configuration: DIR/10-calico.conflist\n", "pass: excluded-namespace"},
		},
		"a packet, JSON": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: append(trace, "-o", "json"),
			out: []string{`"verdict": "pass"`, `"file": "DIR/10-calico.conflist"`},
		},
		"packets": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: []string{"trace", "-f", "web.yaml", "--packets", "-"},
			call: call{stdin: `{"direction":"out","proto":"tcp","dst":"10.96.5.5","dport":80}`},
			out:  []string{`{"verdict":"pass"`}, errOut: []string{"configuration: DIR/10-calico.conflist\n"},
		},
		"rules": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"meshcni","uncaptured_family":"drop"}`)},
			args:  []string{"rules", "-f", "web.yaml", "--ip", "10.244.1.5"}, out: []string{"# configuration: DIR/10-calico.conflist\n", "-p tcp -j DROP"},
		},
		"rules, JSON": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: []string{"rules", "-f", "web.yaml", "--format", "json"},
			out: []string{"{}"}, errOut: []string{"configuration: DIR/10-calico.conflist\n"},
		},
		"comparison": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: []string{"compare", "-f", "web.yaml", "--from-rules", "-"},
			out: []string{"configuration: DIR/10-calico.conflist\n", "excluded-namespace"},
		},
		"a refused pod": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"meshcni","refuse_proxy_uid":true}`)}, args: []string{"explain", "-f", "leaky.yaml"},
			code: 1, out: []string{"pod shop/leaky-1 is refused (istio)"},
		},
		"another mesh": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"meshcni","dialect":"linkerd"}`)},
			out:   []string{"pod shop/web-1 is not in the mesh (linkerd)"},
		},
		"flags win": {
			files: map[string]string{"10-calico.conflist": list(excludes)},
			args:  []string{"explain", "-f", "web.yaml", "--exclude-namespaces", "other", "--dialect", "istio"},
			out:   []string{"is in the mesh", "configuration: DIR/10-calico.conflist, but for --dialect, --exclude-namespaces\n"},
		},
		"without": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: []string{"explain", "-f", "web.yaml", "--config", "none"},
			out: []string{"is in the mesh", "configuration: none (--config none)"},
		},
		"without, a packet": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: append(trace, "--config", "none"),
			out: []string{"redirect 15001"}, not: "configuration",
		},
		"flags in place of a pod": {
			files: map[string]string{"10-calico.conflist": list(excludes)}, args: []string{"rules", "-p", "15001"},
			out: []string{"-j ISTIO_OUTPUT"}, not: "configuration",
		},
		"no entry": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"other"}`)},
			out:   []string{"is in the mesh", "configuration: none (DIR/10-calico.conflist, which the runtime loads, has no entry of type meshcni), so flags and defaults\n"},
		},
		"no network": {
			files: map[string]string{"10-calico.conflist": "{"}, args: trace,
			out: []string{"configuration: none (DIR: ", "10-calico.conflist: ", "redirect 15001"},
		},
		"a file of our own": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"other"}`), "00-meshcni.conflist": list(excludes)},
			out:   []string{"excluded-namespace", "configuration: DIR/00-meshcni.conflist\n"},
		},
		"Multus": {
			files: map[string]string{"00-multus.conf": `{"cniVersion":"1.0.0","name":"m","type":"multus"}`, "meshcni.conf": `{"cniVersion":"1.0.0","name":"meshcni",` + excludes[1:]},
			out:   []string{"excluded-namespace", "configuration: DIR/meshcni.conf, although the runtime loads DIR/00-multus.conf\n"},
		},
		"several": {
			files: map[string]string{"00-a.conflist": list(`{"type":"other"}`), "b.conflist": list(excludes), "c.conflist": list(excludes)},
			code:  1, errOut: []string{"b.conflist, c.conflist all have an entry", "--config"},
		},
		"bad values": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"meshcni","backend":"ebpf","refuse_proxy_uid":3}`)},
			code:  1, errOut: []string{"DIR/10-calico.conflist, entry of type meshcni", `backend "ebpf"`, "refuse_proxy_uid: want"},
		},
		"an unknown mesh": {
			files: map[string]string{"10-calico.conflist": list(`{"type":"meshcni","dialect":"klingon"}`)},
			code:  2, errOut: []string{`DIR/10-calico.conflist: dialect: unknown dialect "klingon"`},
		},
		"a template's type": {
			files: map[string]string{"10-calico.conflist": list(strings.Replace(excludes, "meshcni", "shop-cni", 1))},
			call:  call{files: map[string]string{"/run/shop/types": "meshcni\nshop-cni\n"}, env: []string{"MESHCNI_RUN_DIR=/run/shop"}},
			out:   []string{"excluded-namespace"},
		},
		"a file": {
			call: call{files: map[string]string{"theirs.conflist": list(excludes)}}, args: []string{"explain", "-f", "web.yaml", "--config", "theirs.conflist"},
			out: []string{"excluded-namespace", "configuration: theirs.conflist\n"},
		},
		"standard input": {
			call: call{stdin: excludes}, args: []string{"explain", "-f", "web.yaml", "--config", "-"},
			out: []string{"excluded-namespace", "configuration: -\n"},
		},
		"a file without": {
			call: call{stdin: list(`{"type":"other"}`)}, args: []string{"explain", "-f", "web.yaml", "--config", "-"},
			code: 1, errOut: []string{"--config: - has no entry of type meshcni"},
		},
		"a file that is none": {
			call: call{stdin: "dialect: istio"}, args: []string{"explain", "-f", "web.yaml", "--config", "-"}, code: 1, errOut: []string{"--config: read the configuration -: "},
		},
		"a file that is missing": {
			args: []string{"explain", "-f", "web.yaml", "--config", "absent.conflist"}, code: 1, errOut: []string{"--config: ", "absent.conflist"},
		},
		"one standard input for two": {
			call: call{stdin: excludes}, args: []string{"explain", "-f", "-", "--config", "-"}, code: 2, errOut: []string{"only one of them can be standard input"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := node(t, tt.files)
			if tt.files != nil {
				tt.call.env = append(tt.call.env, "MESHCNI_CNI_CONF_DIR="+dir)
			}
			if tt.args == nil {
				tt.args = []string{"explain", "-f", "web.yaml"}
			}
			got := tt.call.run(t, tt.args...)
			assert.Equal(t, tt.code, got.code, got.out+got.errOut)
			for _, part := range tt.out {
				assert.Contains(t, got.out, strings.ReplaceAll(part, "DIR", dir))
			}
			for _, part := range tt.errOut {
				assert.Contains(t, got.errOut, strings.ReplaceAll(part, "DIR", dir))
			}
			if tt.not != "" {
				assert.NotContains(t, got.out+got.errOut, tt.not)
			}
		})
	}
}

// TestUnreadableConfiguration: what cannot be read may exclude the pod, so nothing is said of it.
func TestUnreadableConfiguration(t *testing.T) {
	t.Parallel()
	dir := node(t, map[string]string{"20-calico.conflist": list(excludes)})
	require.NoError(t, os.Symlink("loop.conflist", filepath.Join(dir, "loop.conflist")))
	require.NoError(t, os.Symlink("loop.conflist", filepath.Join(dir, "10-calico.conflist")))
	for _, args := range [][]string{{"explain", "-f", "web.yaml"}, {"trace", "-f", "web.yaml", "--dst", "10.0.0.1"}, {"rules", "-f", "web.yaml"}} {
		got := call{env: []string{"MESHCNI_CNI_CONF_DIR=" + dir}}.run(t, args...)
		assert.Equal(t, 1, got.code, args)
		assert.Empty(t, got.out, args)
		assert.Contains(t, got.errOut, "read the installed configuration in "+dir+": 10-calico.conflist")
		assert.Contains(t, got.errOut, "--config none")
	}
	// Neither is a record of types that cannot be read as good as none.
	dir = node(t, map[string]string{"10-calico.conflist": list(`{"type":"shop-cni"}`)})
	require.NoError(t, os.Mkdir(filepath.Join(dir, "types"), 0o700))
	unread := call{env: []string{"MESHCNI_CNI_CONF_DIR=" + dir, "MESHCNI_RUN_DIR=../" + strings.Repeat("../", 20) + dir}}
	got := unread.run(t, "explain", "-f", "web.yaml")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.errOut, "has no entry of type meshcni, and whether it has another type is unknown: ")
}

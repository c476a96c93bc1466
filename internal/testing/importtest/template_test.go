package importtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

var needsHelm = netnstest.Need{Name: "helm (run .ci/tool helm)", Check: func() error {
	_, err := proctest.Tool("helm")
	return err
}}

// copied is a copy of examples/mesh, outside of this repository and with a name of its own.
type copied struct{ dir, helm string }

// run runs a program in the copy, as a user does, and returns what it prints.
func (c copied) run(t *testing.T, env []string, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "PATH="+filepath.Dir(c.helm)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", program, strings.Join(args, " "), out)
	return string(out)
}

func (c copied) read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, path))
	require.NoError(t, err)
	return string(text)
}

// TestTemplate does with examples/mesh what docs/embedding.md says, in a directory outside of this repository: copies and renames it, builds its
// programs, runs its tests, and installs its plugin on a node's directories with the arguments that its chart gives the agent.
func TestTemplate(t *testing.T) {
	netnstest.Require(t, needsHelm)
	t.Parallel()
	helm, err := proctest.Tool("helm")
	require.NoError(t, err)
	c := copied{filepath.Join(t.TempDir(), "copy"), helm}
	require.NoError(t, os.CopyFS(c.dir, os.DirFS(filepath.Join(root(t), "examples", "mesh"))))
	c.run(t, nil, "make", "init", "NAME=zebra", "MODULE=example.com/savanna", "MESHCNI="+root(t))
	require.NoError(t, filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(c.dir, path)
		require.NoError(t, err)
		assert.NotRegexp(t, "(?i)acme|orig$", rel)
		if !d.IsDir() {
			assert.NotRegexp(t, "(?i)acme|examples/mesh", c.read(t, rel), rel)
		}
		return nil
	}))
	assert.Empty(t, c.run(t, nil, "gofmt", "-l", "."))
	c.run(t, nil, "make", "build", "VERSION=v1.2.3")
	c.run(t, nil, "make", "test")
	c.run(t, nil, "make", "chart", "VERSION=v1.2.3", "REGISTRY=registry.savanna.example", "MESHCNI="+root(t))

	for _, asked := range []struct{ command, env, says string }{
		{"bin/zebra-cni", "CNI_COMMAND=VERSION", `"1.1.0"`},
		{"bin/zebra-node --version", "", "zebra-node v1.2.3"},
		{"bin/zebra-redirect explain -f pod.yaml", "", "is in the mesh (zebra)"},
		{"bin/zebra-redirect trace -f pod.yaml --dst 10.0.0.1 --dport 443 --uid 1000", "", "redirect 7001"},
		{"bin/zebra-redirect trace -f pod.yaml --dst 10.0.0.1 --dport 3306 --uid 1000", "", "pass"},
		{"bin/kubectl-zebra --help", "", "say how zebra does"},
	} {
		assert.Contains(t, c.run(t, []string{asked.env}, "sh", "-c", `echo '{"cniVersion": "1.0.0"}' | `+asked.command), asked.says, asked.command)
	}
	c.install(t, c.chart(t))
}

// own is what may still have the name of meshcni in the objects of another product: where they are from, and paths in the agent's container.
var own = regexp.MustCompile(`(?m)#.*$|helm.sh/chart: meshcni-.*|/etc/meshcni\b|/var/run/meshcni-agent\b|the chart of meshcni`)

type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Image        string
					Args         []string
					StartupProbe struct{ Exec struct{ Command []string } }
				}
			}
		}
	}
}

// chart returns the objects of the chart, by kind and name.
func (c copied) chart(t *testing.T) map[string]object {
	t.Helper()
	text := c.run(t, nil, c.helm, "template", "zebra", "bin/zebra-1.2.3.tgz", "--namespace", "zebra-system", "--kube-version", "1.36.0")
	assert.NotContains(t, own.ReplaceAllString(text, ""), "meshcni")
	all := map[string]object{}
	for _, document := range strings.Split(text, "\n---\n") {
		var o object
		require.NoError(t, yaml.Unmarshal([]byte(document), &o), document)
		all[o.Kind+" "+o.Metadata.Name] = o
	}
	return all
}

// install runs the agent with the chart's arguments, on directories in place of a node's.
func (c copied) install(t *testing.T, all map[string]object) {
	t.Helper()
	agents := all["DaemonSet zebra-node"].Spec.Template.Spec.Containers
	require.Len(t, agents, 1)
	agent := agents[0]
	assert.Equal(t, "registry.savanna.example/zebra/zebra:v1.2.3", agent.Image)
	for from, to := range map[string]string{"bin/zebra-cni": "/opt/zebra/bin/", "bin/zebra-node": filepath.Dir(agent.StartupProbe.Exec.Command[0]) + "/"} {
		assert.FileExists(t, filepath.Join(c.dir, from))
		assert.Regexp(t, fmt.Sprintf("(?m)^COPY .*%s.* %s$", from, to), c.read(t, "Dockerfile"))
	}
	assert.Equal(t, "zebra-node", filepath.Base(agent.StartupProbe.Exec.Command[0]))
	assert.Contains(t, c.run(t, nil, "bin/zebra-node", "run", "--help"), "/opt/zebra/bin", "where the agent looks for the plugin")

	const network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"}]}`
	for path, text := range map[string]string{
		"host/etc/cni/net.d/10-pods.conflist": network, "host/opt/cni/bin/ptp": "#!/bin/true\n", "host/var/lib/cni/none": "", "account/token": "t", "account/ca.crt": "c",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(c.dir, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, path), []byte(text), 0o755)) //nolint:gosec // one is a program
	}
	for key, o := range all {
		if strings.HasPrefix(key, "ConfigMap zebra-node-") {
			require.NoError(t, os.WriteFile(filepath.Join(c.dir, "config.yaml"), []byte(o.Data["config.yaml"]), 0o600))
		}
	}
	require.Equal(t, "run", agent.Args[0])
	var args []string
	for _, arg := range agent.Args[1:] {
		args = append(args, strings.NewReplacer("=/host/", "="+c.dir+"/host/", "/etc/zebra/", c.dir+"/", "/var/run/", c.dir+"/run/").Replace(arg))
	}
	args = append(args, "--service-account-dir="+c.dir+"/account", "--plugin-service-account=", "--kubernetes-service-host=10.96.0.1")
	env := []string{"ZEBRA_BIN_SOURCE_DIR=" + c.dir + "/bin", "POD_NAMESPACE=zebra-system", "NODE_NAME=a"}
	c.run(t, env, "bin/zebra-node", append([]string{"install", "--once"}, args...)...)
	list := c.read(t, "host/etc/cni/net.d/10-pods.conflist")
	assert.Contains(t, list, `{"type": "zebra-cni", "dialect": "zebra", `)
	assert.Contains(t, list, `"pod_namespace": "zebra-system"`)
	assert.FileExists(t, filepath.Join(c.dir, "host/opt/cni/bin/zebra-cni"))
	c.run(t, env, "bin/zebra-node", append([]string{"uninstall"}, args...)...)
	assert.Equal(t, network, c.read(t, "host/etc/cni/net.d/10-pods.conflist"))
	assert.NoFileExists(t, filepath.Join(c.dir, "host/opt/cni/bin/zebra-cni"))
}

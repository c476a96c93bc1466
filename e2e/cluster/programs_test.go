//go:build long

package cluster_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/doctest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// inAgent runs a program in the agent's container.
func (c *cluster) inAgent(t *testing.T, input string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := c.run(&stdout, &stderr, input, "kubectl", append([]string{"--namespace", system, "exec", "-i", "daemonset/meshcni-node", "--"}, args...)...)
	require.NoError(t, err, "%s%s", &stdout, &stderr)
	return stdout.String()
}

// TestPrograms: the programs in the agent's container take the installed configuration, and where no agent is left, those of
// the image do what the page says.
func TestPrograms(t *testing.T) {
	c := sharedCluster(t)
	s, quiet := newShop(t, c, "programs"), newShop(t, c, "quiet")
	install(t, c, "--set", "excludeNamespaces={kube-system,quiet},uninstallOnExit=false,uncapturedFamily=drop")
	s.create(t, pod{name: "cart", validated: true}, pod{name: "client", outside: true})
	quiet.create(t, pod{name: "cart"})
	s.ready(t, "cart", "client")
	quiet.ready(t, "cart")
	const installed = "configuration: /host" + confList + "\n"

	step(t, c, "explain and trace", func(t *testing.T) {
		out := c.inAgent(t, quiet.kubectl(t, "get", "pod", "cart", "-o", "yaml"), "meshcni-redirect", "explain", "-f", "-")
		assert.Contains(t, out, "pod quiet/cart is not in the mesh (istio)\n  excluded-namespace: ")
		assert.Contains(t, out, installed)
		yaml := s.kubectl(t, "get", "pod", "cart", "-o", "yaml")
		out = c.inAgent(t, yaml, "meshcni-redirect", "explain", "-f", "-")
		assert.Contains(t, out, "pod programs/cart is in the mesh (istio)\n")
		assert.Contains(t, out, installed)
		out = c.inAgent(t, yaml, "meshcni-redirect", "rules", "-f", "-", "--family", "6")
		assert.Contains(t, out, "-p tcp -j DROP", "uncapturedFamily")
		out = c.inAgent(t, quiet.kubectl(t, "get", "pod", "cart", "-o", "yaml"), "meshcni-redirect", "trace", "-f", "-", "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000")
		assert.Contains(t, out, installed)
		assert.Contains(t, out, "pass: excluded-namespace")
	})

	step(t, c, "support-bundle", func(t *testing.T) {
		files := unpack(t, c.inAgent(t, "", "meshcni-node", "support-bundle"))
		assert.Contains(t, files["net.d/installed.txt"], "the entry is in /host"+confList)
		assert.Contains(t, files["run/plugin.log"], `"pod":"cart"`)
		assert.Contains(t, files["run/attachments.jsonl"], `"namespace":"programs"`)
		assert.Contains(t, files["cni-cache.txt"], `pod "programs/cart"`)
		assert.Contains(t, files["agent/readyz.txt"], "200 OK")
		assert.Contains(t, files["config.yaml"], "dialect: istio")
		assert.Contains(t, files["settings.txt"], "uninstall-on-exit: false\n", "the agent's arguments count")
		noSecret(t, files)
	})

	c.Run(t, "helm", "uninstall", release, "--namespace", system, "--wait")
	eventually(t, soon, "no agent is left", func() error {
		if left := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/name=meshcni", "-o", "name"); left != "" {
			return errors.New(left)
		}
		return nil
	})

	step(t, c, "without an agent", func(t *testing.T) {
		bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
		env := append(c.Env(), "NODE="+nodeName, "IMAGE="+chartImage, "POD=programs/cart", "BUNDLE="+bundle)
		const section = "When the agent is gone"
		runPage(t, section, "support-bundle", env)
		text, err := os.ReadFile(bundle)
		require.NoError(t, err)
		files := unpack(t, string(text))
		assert.Contains(t, files["run/plugin.log"], `"pod":"cart"`)
		assert.Contains(t, files["pods/programs_cart-1.json"], `"ours": true`)
		assert.Contains(t, files["pods/programs_cart-1.json"], `"differences": []`)
		noSecret(t, files)
		assert.Equal(t, "[]\n", runPage(t, section, "jq", env))
		said := runPage(t, section, "uninstall", env)
		assert.Contains(t, said, "the binary stays")
		assert.Equal(t, primary, fileText(t, confList), "the entry is out")
		assert.NoFileExists(t, kubeconfig)
		s.create(t, pod{name: "late"})
		s.ready(t, "late")
		s.assertUncaptured(t, "late", "client")
		s.assertCaptured(t, "cart", "client")
		s.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
		quiet.kubectl(t, "delete", "pods", "--all", "--timeout=5m")
		s.assertNothingLeft(t)
		runPage(t, section, "uninstall", env)
		assert.Empty(t, c.Changes(t))
	})
}

// noSecret holds a bundle to have none of the node's tokens.
func noSecret(t *testing.T, files map[string]string) {
	t.Helper()
	require.NotEmpty(t, files)
	text, err := os.ReadFile(kubeconfig)
	if os.IsNotExist(err) {
		return
	}
	require.NoError(t, err)
	found := regexp.MustCompile(`token: "?([^"\s]+)`).FindSubmatch(text)
	for name, text := range files {
		if found != nil {
			assert.NotContains(t, text, string(found[1]), name)
		}
		assert.NotRegexp(t, `eyJ[\w-]+\.eyJ`, text, name)
	}
}

// unpack reads a support bundle: its files by their names in its directory.
func unpack(t *testing.T, archive string) map[string]string {
	t.Helper()
	gz, err := gzip.NewReader(strings.NewReader(archive))
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		files[strings.TrimPrefix(h.Name, "meshcni-support/")] = string(text)
	}
}

// runPage runs the command of a section of the troubleshooting page that has a word in it, and returns what it has printed.
func runPage(t *testing.T, section, word string, env []string) string {
	t.Helper()
	file := filepath.Join(proctest.Root(), "docs/troubleshooting.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, from, ok := strings.Cut(string(text), "\n## "+section+"\n")
	require.True(t, ok, "no section %q", section)
	from, _, _ = strings.Cut(from, "\n## ")
	blocks, err := doctest.Parse(file, from)
	require.NoError(t, err)
	for _, b := range blocks {
		if b.Lang == "sh" && strings.Contains(b.Text, " "+word+" ") {
			ctx, cancel := context.WithTimeout(context.Background(), netnstest.Patience)
			defer cancel()
			out, err := b.Run(ctx, proctest.Root(), env...)
			require.NoError(t, err, out)
			return out
		}
	}
	require.Fail(t, "no such command", "%s: %s", section, word)
	return ""
}

//go:build linux

package nodecmd

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestStartsWithTheLastGoodSettings: settings that become wrong while no agent runs are refused by the one that starts, which works with those
// that were last good and says so until they are mended. What was never good is refused as ever: flags, and the settings of an upgrade.
func TestStartsWithTheLastGoodSettings(t *testing.T) {
	dir, env := node(t)
	config := filepath.Join(dir, "config.yaml")
	write := func(path, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	good := "dialect: kuma\nadd-deadline: 5s\nexclude-namespaces: [a, b]\nrefuse-proxy-uid: true\n"
	write(config, good)
	args := []string{"run", "--config", config, "--config-id", "first", "--metrics-address", "127.0.0.1:0", "--health-address", ""}
	type agent struct {
		stop func() int // and its exit code
		ends func() int // the same, of one that ends by itself
		log  *proctest.Buffer
		get  func(path string) string
	}
	start := func(more ...string) agent {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		log, code := &proctest.Buffer{}, make(chan int, 1)
		go func() {
			code <- Program{Env: lookup(env), Stderr: log}.Main(ctx, append(append([]string{}, args...), more...))
		}()
		return agent{
			stop: func() int { cancel(); return <-code }, ends: func() int { defer cancel(); return <-code }, log: log,
			get: func(path string) string {
				_, rest, _ := strings.Cut(log.String(), `"address":"`)
				address, _, _ := strings.Cut(rest, `"`)
				resp, err := http.Get("http://" + address + path)
				if err != nil {
					return ""
				}
				defer func() { _ = resp.Body.Close() }()
				body, _ := io.ReadAll(resp.Body)
				return resp.Status + "\n" + string(body)
			},
		}
	}
	entry := func() string {
		data, _ := os.ReadFile(filepath.Join(dir, "net.d/10-calico.conflist"))
		return string(data)
	}
	within := func(what string, done func() bool) {
		t.Helper()
		require.Eventually(t, done, netnstest.Patience, 10*time.Millisecond, what)
	}
	ready := func(a agent) {
		t.Helper()
		within("ready", func() bool { return strings.HasPrefix(a.get("/readyz"), "200 OK\nok") })
	}
	kept := filepath.Join(dir, "run", lastGoodFile)
	refused := func(a agent, says string) {
		t.Helper()
		ready(a)
		within("it says what is refused", func() bool { return strings.Contains(a.get("/readyz"), "config-refused: ") })
		assert.Contains(t, a.get("/readyz"), says)
		assert.Contains(t, a.get("/metrics"), "meshcni_config_refused 1\n")
		assert.Contains(t, a.log.String(), `"msg":"the settings are refused; those that were last good are in force until they are mended"`)
		assert.Contains(t, entry(), `"dialect":"kuma"`)
		assert.Contains(t, entry(), `"add_deadline":"5s"`)
		assert.Contains(t, entry(), `"exclude_namespaces":["a","b"]`)
	}

	first := start()
	ready(first)
	within("remembered", func() bool { _, err := os.Stat(kept); return err == nil })
	info, err := os.Stat(kept)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	require.Equal(t, 0, first.stop())

	write(config, "dialect: kumma\n")
	second := start()
	refused(second, `unknown dialect "kumma"`)
	write(config, strings.Replace(good, "5s", "6s", 1))
	within("mended", func() bool { return strings.Contains(second.get("/metrics"), "meshcni_config_refused 0") })
	assert.NotContains(t, second.get("/readyz"), "config-refused")
	within("and in force", func() bool { return strings.Contains(entry(), `"add_deadline":"6s"`) })
	write(config, good)
	within("as before", func() bool { data, _ := os.ReadFile(kept); return strings.Contains(string(data), `"5s"`) })
	require.Equal(t, 0, second.stop())

	require.NoError(t, os.Remove(config))
	third := start()
	refused(third, "no such file")
	require.Equal(t, 0, third.stop())

	write(config, "dialect: kumma\n")
	for _, wrong := range []string{"--config-id=second", "--backend=nothing", "--run-dir=" + t.TempDir()} {
		assert.Equal(t, 2, start(wrong).ends(), wrong)
	}
	write(kept, "{")
	torn := start()
	assert.Equal(t, 2, torn.ends())
	assert.Contains(t, torn.log.String(), "read the settings that were last good")
}

// TestTheLastGoodTemplate: the template of the plugin's entry is one of those settings.
func TestTheLastGoodTemplate(t *testing.T) {
	dir, env := node(t)
	template := filepath.Join(dir, "plugin.json")
	const good = `{"type": "shop-cni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}`
	require.NoError(t, os.WriteFile(template, []byte(good), 0o600))
	p := Program{Env: lookup(env)}
	p.setDefaults()
	c, rest, err := p.command().Find([]string{"run", "--plugin-config", template})
	require.NoError(t, err)
	require.NoError(t, c.ParseFlags(rest))
	s, refused, err := p.resolveOrLast(c.Flags())
	require.NoError(t, err)
	require.NoError(t, refused)
	k := &keeper{log: slog.New(slog.DiscardHandler)}
	require.NoError(t, os.MkdirAll(s.RunDir, 0o755))
	k.keep(s)
	require.NoError(t, os.WriteFile(template, []byte(`{"type": `), 0o600))
	_, _, err = p.resolveOrLast(c.Flags())
	require.NoError(t, err)
	s, refused, _ = p.resolveOrLast(c.Flags())
	require.ErrorContains(t, refused, "template")
	assert.Equal(t, good, s.PluginConfig)
	require.NoError(t, os.Remove(filepath.Join(s.RunDir, lastGoodFile)))
	_, _, err = p.resolveOrLast(c.Flags())
	assert.ErrorContains(t, err, "template")
}

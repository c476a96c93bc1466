//go:build linux

package nodecmd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Another mesh's plugin in the list is on the node's events, in /readyz, in the log, and what repair suspects of changed rules.
func TestOtherMeshIsTold(t *testing.T) {
	dir, env := node(t)
	file := filepath.Join(dir, "net.d/10-calico.conflist")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(calico, "]}", `,{"type":"linkerd-cni"}]}`, 1)), 0o644))
	events := make(chan corev1.Event, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e corev1.Event
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost && r.URL.Path == "/api/v1/namespaces/default/events" && json.Unmarshal(body, &e) == nil {
			assert.Equal(t, "Bearer t", r.Header.Get("Authorization"))
			events <- e
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"], env["KUBERNETES_SERVICE_PROTOCOL"] = at.Hostname(), at.Port(), "http"
	env["NODE_NAME"] = "n1"
	suspects := make(chan func() []string, 1)
	app := Program{Env: lookup(env), Name: "acme-node", open: func(_ repaircmd.Settings, h repaircmd.Host) (controller, error) {
		suspects <- h.Suspects
		return fake(func(ctx context.Context) error { <-ctx.Done(); return nil }), nil
	}}
	var stderr output
	app.Stderr = &stderr
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- app.Main(ctx, []string{"run", "--metrics-address", "", "--health-address", "127.0.0.1:0", "--repair", "label"})
	}()
	select {
	case e := <-events:
		assert.Equal(t, []string{"OtherMesh", "Warning", "Node", "n1", "n1", "acme-node"},
			[]string{e.Reason, e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, string(e.InvolvedObject.UID), e.ReportingController})
		assert.Contains(t, e.Message, `"linkerd-cni" (Linkerd), before our entry in `+file)
	case <-time.After(netnstest.Patience):
		require.Fail(t, "no event", stderr.String())
	}
	var m []string
	serving := regexp.MustCompile(`"msg":"serving","address":"([^"]+)"`)
	netnstest.Eventually(t, "it says where it serves", func() error {
		if m = serving.FindStringSubmatch(stderr.String()); m == nil {
			return errors.New(stderr.String())
		}
		return nil
	})
	resp, err := http.Get("http://" + m[1] + "/readyz") //nolint:noctx // a test's own
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Regexp(t, `^ok\nwarning: other-mesh: .*linkerd-cni.*uninstall the other`, string(body))
	assert.Contains(t, stderr.String(), `"code":"other-mesh","plugin":"linkerd-cni"`)
	assert.Equal(t, []string{`"linkerd-cni" (Linkerd), before our entry in ` + file}, (<-suspects)())
	cancel()
	assert.Equal(t, 0, <-done)
}

func TestOwnFileFlag(t *testing.T) {
	_, env := node(t)
	for args, want := range map[string]string{"": "auto", "--own-file": "true", "--own-file=false": "false", "--own-file=auto": "auto"} {
		s, err := parsed(env, strings.Fields(args)...)
		require.NoError(t, err)
		assert.Equal(t, want, string(s.OwnFile), args)
	}
	env["MESHCNI_OWN_FILE"] = "false"
	s, err := parsed(env)
	require.NoError(t, err)
	assert.Equal(t, "false", string(s.OwnFile))
	_, err = parsed(env, "--own-file=auto", "--cni-conf-name=00-meshcni.conflist")
	require.ErrorContains(t, err, "cni-conf-name")
}

package ownnodeproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	ownnodeproxy "github.com/meshcni/meshcni/examples/own-node-proxy"
	"github.com/meshcni/meshcni/examples/own-node-proxy/gateway"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

const (
	uid  = "5d9f0c1e-3a77-4c55-8a0e-0d2f9e6b7c11"
	node = "node-1"
	pod  = `{"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": "cart", "uid": "` + uid + `", "resourceVersion": "1"},
		"spec": {"nodeName": "` + node + `", "containers": [{"name": "cart"}]}, "status": {"phase": "Running", "podIP": "10.244.1.5", "podIPs": [{"ip": "10.244.1.5"}]}}`
)

// api is an API server with one pod, whose namespace loses its label when told so.
func api(t *testing.T) (host, port string, unlabel func()) {
	t.Helper()
	unlabelled := make(chan struct{})
	namespace := func(revision int, value string) string {
		return fmt.Sprintf(`{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
			"metadata": {"name": "shop", "resourceVersion": "%d", "labels": {%q: %q}}}`, revision, gateway.Label, value)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		watch, pods := r.URL.Query().Get("watch") != "", strings.HasSuffix(r.URL.Path, "/pods")
		list, item := `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"`, namespace(1, "on")
		if pods {
			list, item = `{"kind": "PodList", "apiVersion": "v1"`, pod
		}
		switch {
		case r.Method != http.MethodGet || !pods && !strings.HasSuffix(r.URL.Path, "/namespaces"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}`)
		case r.URL.Query().Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400, "reason": "BadRequest", "message": "no such parameter"}`)
		case !watch:
			_, _ = fmt.Fprintf(w, `%s, "metadata": {"resourceVersion": "1"}, "items": [%s]}`, list, item)
		default:
			w.(http.Flusher).Flush()
			if !pods {
				select {
				case <-unlabelled:
					_, _ = fmt.Fprintf(w, `{"type": "MODIFIED", "object": %s}`, namespace(2, "off"))
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
				}
			}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	return at.Hostname(), at.Port(), func() { close(unlabelled) }
}

// The agent of the mesh: a pod that starts is handed to the gateway, and one whose namespace loses its label is taken back.
func TestAgent(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
	dir := filepath.Dir(socktest.Path(t))
	for at, data := range map[string]string{
		"image/gateway-cni": "#!/bin/true\n", "bin/bridge": "#!/bin/true\n", "sa/token": "token", "sa/ca.crt": "CA",
		"net.d/10-pods.conflist": `{"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(at)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, at), []byte(data), 0o700)) //nolint:gosec // some are programs
	}
	host, port, unlabel := api(t)
	log := &proctest.Buffer{}
	program := ownnodeproxy.Agent(&ownnodeproxy.Gateway{Port: gateway.Port, Serve: ownnodeproxy.Hello})
	program.Stderr = log
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	code := make(chan int, 1)
	go func() {
		code <- program.Main(ctx, []string{
			"run", "--ambient", "--backend", "nftables", "--node-name", node, "--bin-source-dir", dir + "/image", "--cni-bin-dir", dir + "/bin", "--cni-conf-dir", dir + "/net.d",
			"--cni-cache-dir", dir + "/cache", "--run-dir", dir + "/run", "--service-account-dir", dir + "/sa", "--plugin-service-account=",
			"--kubernetes-service-protocol", "http", "--kubernetes-service-host", host, "--kubernetes-service-port", port, "--metrics-address=", "--health-address=",
		})
	}()

	agent := agentsock.Client{Path: filepath.Join(dir, "run", agentsock.Name)}
	cart := status.ID{Namespace: "shop", Name: "cart", UID: uid}
	require.Eventually(t, func() bool { _, err := agent.Pod(ctx, cart); return err == nil }, netnstest.Patience, 5*time.Millisecond, "%s", log)
	ns, err := netnsexec.Open(w.Pod.Path())
	require.NoError(t, err)
	defer func() { _ = ns.Close() }()
	attached, err := agent.Attach(ctx, agentsock.Attachment{ // as the plugin does
		ID: attachment.ID{Network: "pods", ContainerID: "c1", IfName: "eth0"}, Pod: cart, Dialect: "gateway", NetNS: w.Pod.Path(),
		Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")},
	}, ns)
	require.NoError(t, err, "%s", log)
	assert.EqualValues(t, "nftables", attached.Backend)
	said := func() (said string, err error) {
		err = w.Pod.Do(func() error {
			conn, err := net.DialTimeout("tcp", "10.96.5.5:80", netnstest.Patience)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			text, err := io.ReadAll(conn)
			said = string(text)
			return err
		})
		return said, err
	}
	got, err := said()
	require.NoError(t, err)
	assert.Equal(t, "the gateway has shop/cart", got)

	state := func() string {
		pods, err := agent.Pods(ctx)
		require.NoError(t, err)
		text, err := json.Marshal(pods)
		require.NoError(t, err)
		require.Len(t, pods, 1, "%s", text)
		return string(pods[0].State)
	}
	assert.Equal(t, string(status.StateCaptured), state())
	unlabel()
	require.Eventually(t, func() bool { return state() == string(status.StateOutside) }, netnstest.Patience, 5*time.Millisecond, "%s", log)
	got, err = said()
	require.NoError(t, err)
	assert.NotContains(t, got, "the gateway", "its connections go straight")
	kept := filepath.Join(dir, "run", "netns", uid) // until the gateway has given the pod back, which an agent that ends leaves to the next one
	require.Eventually(t, func() bool { _, err := os.Stat(kept); return errors.Is(err, fs.ErrNotExist) }, netnstest.Patience, 5*time.Millisecond, "%s", log)
	stop()
	assert.Zero(t, <-code, "%s", log)
}

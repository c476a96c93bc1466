package integration

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// slowServer is the API server behind a proxy that keeps each request waiting.
type slowServer struct {
	*httptest.Server

	mu   sync.Mutex
	took [][2]time.Time // of each request but watches
}

func slow(t testing.TB, s *kubetest.Server, wait time.Duration) *slowServer {
	t.Helper()
	config, err := s.Config("")
	require.NoError(t, err)
	transport, err := rest.TransportFor(&rest.Config{Host: config.Host, TLSClientConfig: config.TLSClientConfig}) // with the agent's own token
	require.NoError(t, err)
	target, err := url.Parse(config.Host)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.FlushInterval = transport, -1
	slow := &slowServer{}
	slow.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
		proxy.ServeHTTP(w, r)
		if r.URL.Query().Get("watch") == "" {
			slow.mu.Lock()
			defer slow.mu.Unlock()
			slow.took = append(slow.took, [2]time.Time{began, time.Now()})
		}
	}))
	slow.EnableHTTP2 = true
	slow.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	slow.StartTLS()
	t.Cleanup(func() { slow.CloseClientConnections(); slow.Close() })
	return slow
}

// rounds is how many requests were made one after the other: the most of which no two overlap.
func (s *slowServer) rounds() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortFunc(s.took, func(a, b [2]time.Time) int { return a[1].Compare(b[1]) })
	var end time.Time
	for _, r := range s.took {
		if !r[0].Before(end) {
			n, end = n+1, r[1]
		}
	}
	return n
}

// TestSlowServer: the built agent with --repair=auto begins at an API server that takes three seconds for each request, on a node with 110 broken
// pods, as after a power cut. All of them are evicted within forty requests one after the other, so within two minutes of its answering at all. Among those are the
// ones by which the agent proves a second time that it is confined, once it watches the policies.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	const node, each = 110, 3 * time.Second
	w := newTokens(t)
	w.grant(t, "repair-auto")
	w.policies(t)
	pods := make([]*corev1.Pod, node)
	kubetest.Parallel(node, func(i int) {
		pod := podFrom(t, "crash-loop", w.ns, fmt.Sprintf("web-%d", i), w.node)
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: pod.Name, UID: types.UID("of-" + pod.Name), Controller: &yes}}
		pods[i] = w.Create(t, pod)
	})
	s := slow(t, w.s, each)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	require.NoError(t, os.WriteFile(w.dirs.sa+"/ca.crt", ca, 0o600))
	_, port, found := strings.Cut(strings.TrimPrefix(s.URL, "https://"), ":")
	require.True(t, found)
	c := agentContainer(t, w.s, w.dirs, buildProgram(t, "meshcni-node"), "--detect=true", "--repair=auto")
	c.env = append(c.env, "POD_NAMESPACE="+w.ns, "NODE_NAME="+w.node, "MESHCNI_DAEMONSET_NAME=meshcni-node-"+w.ns, "KUBERNETES_SERVICE_PORT="+port)
	began := time.Now()
	w.agent = c.start(t)
	eventually(t, "all are evicted", func() bool {
		var list corev1.PodList
		w.Do(t, http.MethodGet, "/api/v1/namespaces/"+w.ns+"/pods", nil, &list)
		left := 0
		for _, p := range list.Items {
			if strings.HasPrefix(p.Name, "web-") && p.DeletionTimestamp == nil {
				left++
			}
		}
		return left == 0
	})
	rounds := s.rounds()
	t.Logf("%d pods evicted after %s and %d requests one after the other", node, time.Since(began).Round(time.Second), rounds)
	assert.LessOrEqual(t, rounds, int(2*time.Minute/each))
}

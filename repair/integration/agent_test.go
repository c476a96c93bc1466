package integration

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/metrictest"
)

const agentNamespace = "meshcni-system"

// mesh is the dialect of all tests here.
var mesh = istio.New("kube-system")

// agent is a running controller with the shipped permissions of one mode, and
// none besides.
type agent struct {
	t        testing.TB
	ctl      *repair.Controller
	registry *prometheus.Registry
	log      *proctest.Buffer
	user     string
	stop     func()
}

// account makes a service account with the permissions of manifests of deploy/rbac,
// and returns its name as a user and a token.
func account(t testing.TB, a *admin, manifests ...string) (user, token string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}}
	if err := a.Try(http.MethodPost, "/api/v1/namespaces", ns, nil); err != nil {
		require.ErrorContains(t, err, "409")
	}
	accounts := "/api/v1/namespaces/" + agentNamespace + "/serviceaccounts"
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}}
	a.Do(t, http.MethodPost, accounts, sa, sa)
	for _, m := range manifests {
		applyRBAC(t, a, m, sa.Name)
	}
	request := &authenticationv1.TokenRequest{}
	a.Do(t, http.MethodPost, accounts+"/"+sa.Name+"/token", request, request)
	return "system:serviceaccount:" + agentNamespace + ":" + sa.Name, request.Status.Token
}

// applyRBAC makes what a manifest says, strictly validated, under names of its own
// and for another service account.
func applyRBAC(t testing.TB, a *admin, manifest, account string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "rbac", manifest+".yaml"))
	require.NoError(t, err)
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var meta metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal([]byte(doc), &meta))
		path := "/apis/rbac.authorization.k8s.io/v1/"
		if meta.Namespace != "" {
			path += "namespaces/" + meta.Namespace + "/"
		}
		path += strings.ToLower(meta.Kind) + "s"
		own := strings.ReplaceAll(doc, "name: "+meta.Name+"\n", "name: "+meta.Name+"-"+account+"\n")
		own = strings.ReplaceAll(own, "name: meshcni-node\n", "name: "+account+"\n")
		var object any
		switch meta.Kind {
		case "ClusterRoleBinding", "RoleBinding":
			var b rbacv1.ClusterRoleBinding
			require.NoError(t, yaml.UnmarshalStrict([]byte(own), &b))
			require.Equal(t, account, b.Subjects[0].Name, "the manifest binds service account meshcni-node")
			require.Equal(t, agentNamespace, b.Subjects[0].Namespace)
			object = b
		default:
			var r rbacv1.ClusterRole
			require.NoError(t, yaml.UnmarshalStrict([]byte(own), &r))
			object = r
		}
		a.Do(t, http.MethodPost, path+"?fieldValidation=Strict", object, nil)
	}
}

// manifestOf is the file of deploy/rbac for a mode.
func manifestOf(o repair.Options) string {
	if o.Force {
		return "repair-force-delete"
	}
	return "repair-" + string(o.Action)
}

// runAgent runs a controller until the test ends.
func runAgent(t testing.TB, s *kubetest.Server, node string, change func(*repair.Options)) *agent {
	t.Helper()
	ag := &agent{t: t, registry: prometheus.NewRegistry(), log: &proctest.Buffer{}}
	o := repair.Options{
		Node: node, Meshes: dialect.SetOf(mesh), Metrics: ag.registry, Log: slog.New(slog.NewJSONHandler(ag.log, nil)),
		NodeBudget: repair.Unlimited, // what begins empty would only slow the tests that are not about it
	}
	var err error
	o.Config, err = s.Config("")
	require.NoError(t, err)
	change(&o)
	if o.Config.BearerToken == "" {
		manifests := []string{manifestOf(o)}
		if o.Meshes.ReadsNamespace(nil) {
			manifests = append(manifests, "repair-namespaces")
		}
		ag.user, o.Config.BearerToken = account(t, newAdmin(t, s), manifests...)
	}
	ag.ctl, err = repair.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ag.ctl.Run(ctx) }()
	ag.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	t.Cleanup(func() {
		ag.stop()
		if t.Failed() {
			t.Log(ag.log.String())
		}
	})
	return ag
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, netnstest.Patience, 20*time.Millisecond, what)
}

// outcome waits for an outcome with a reason.
func (ag *agent) outcome(want string) {
	ag.t.Helper()
	eventually(ag.t, want, func() bool { return ag.outcomes()[want] > 0 })
}

func (ag *agent) outcomes() map[string]int { return ag.counts("meshcni_repair_outcomes_total") }

// counts are a metric's values by its labels' values, less the action.
func (ag *agent) counts(name string) map[string]int {
	ag.t.Helper()
	return metrictest.Counts(ag.t, ag.registry, name, "action")
}

// ready waits until the controller works.
func (ag *agent) ready() {
	ag.t.Helper()
	eventually(ag.t, "ready", func() bool { return ag.ctl.Ready() == nil })
}

// podFrom is a pod of repair's test data, of another namespace, name and node.
func podFrom(t testing.TB, file, namespace, name, node string) *corev1.Pod {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "pods", file+".json"))
	require.NoError(t, err)
	pod := &corev1.Pod{}
	require.NoError(t, json.Unmarshal(b, pod))
	pod.Namespace, pod.Name, pod.UID, pod.ResourceVersion, pod.Spec.NodeName = namespace, name, "", "", node
	return pod
}

// hooked calls fn before the first request whose method and path's end match is
// sent; what fn returns, if not nil, answers it.
func hooked(o *repair.Options, method, pathEnd string, fn func(send func() error) error) {
	var once sync.Once
	o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			var err error
			path := r.URL.Path
			if _, name, one := strings.Cut(r.URL.Query().Get("fieldSelector"), "metadata.name="); one { // a pod is read as a list of one
				name, _, _ = strings.Cut(name, ",")
				path += "/" + name
			}
			if r.Method == method && strings.HasSuffix(path, pathEnd) {
				once.Do(func() {
					err = fn(func() error {
						resp, err := next.RoundTrip(r)
						if err == nil {
							err = resp.Body.Close()
						}
						return err
					})
				})
			}
			if err != nil {
				return nil, err
			}
			return next.RoundTrip(r)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

package deploy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshcni/meshcni/repair/integration/kubetest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m, kubetest.Options{})) }

var cluster struct {
	once  sync.Once
	admin *kubetest.Admin
}

// server is one with other projects' definitions, and with the namespace that
// the plain manifests make and the service accounts that the pods name.
func server(t *testing.T) *kubetest.Admin {
	t.Helper()
	s := kubetest.Shared(t)
	cluster.once.Do(func() {
		admin := s.Admin(t)
		define(t, admin)
		for _, o := range manifestNamespace(t) {
			admin.Do(t, http.MethodPost, collection("v1", "Namespace", ""), o.Object, nil)
		}
		guarded := values{"metadata": values{"name": "guarded", "labels": values{"pod-security.kubernetes.io/enforce": "baseline"}}}
		admin.Do(t, http.MethodPost, collection("v1", "Namespace", ""), guarded, nil)
		for _, name := range []string{"meshcni-node", "meshcni-plugin", "meshcni-uninstall", "meshcni-node-taint", "meshcni-taint-remove", "reader", "somebody", "default"} {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
			admin.Do(t, http.MethodPost, collection("v1", "ServiceAccount", namespace), account, nil)
			admin.Do(t, http.MethodPost, collection("v1", "ServiceAccount", "guarded"), account, nil)
		}
		cluster.admin = admin
	})
	require.NotNil(t, cluster.admin, "the server is not there, as another test says")
	return cluster.admin
}

// everything is each combination of platform, mode of repair, mesh and way of
// chaining, and each option on its own with the platforms that have the most of
// their own. With -short it is one mesh.
func everything(t testing.TB) (all []values, names []string) {
	t.Helper()
	add := func(name string, v values) {
		all, names = append(all, v), append(names, name)
	}
	for _, profile := range profiles(t) {
		for _, mode := range repairModes {
			for _, dialect := range everyMesh {
				if testing.Short() && dialect != dialectNames[0] {
					continue
				}
				for chain, chained := range chaining {
					add(fmt.Sprintf("profile %q, repair %s, %s, %s", profile, mode.name, dialect, chain),
						values{"profile": profile}.with(mode.in(dialect)).with(chained))
				}
			}
		}
	}
	for _, profile := range []string{"", "gke", "openshift", "bottlerocket"} {
		for option, v := range options {
			add(fmt.Sprintf("profile %q, %s", profile, option), values{"profile": profile}.with(v))
			if agent := v["agent"]; agent != "off" && agent != false { // which ambient cannot do without
				add(fmt.Sprintf("profile %q, ambient, %s", profile, option), values{"profile": profile}.with(ambientOn).with(v))
			}
		}
	}
	for _, mode := range repairModes {
		for _, backend := range backends {
			add(fmt.Sprintf("repair %s, %s", mode.name, backend), values{"repair": mode.values, "backend": backend})
		}
	}
	return all, names
}

// TestEveryCombinationIsAccepted has a real API server judge each different
// object of all combinations, unknown and repeated fields refused; and each
// different pod that the DaemonSets would make, with all of admission.
func TestEveryCombinationIsAccepted(t *testing.T) {
	t.Parallel()
	admin := server(t)
	all, names := everything(t)
	seen, distinct := map[string]string{}, map[string]string{} // texts, and objects in JSON; and where they are from
	count := 0
	const atOnce = 200 // dependencies of one chart; more take more than their share of time
	for start := 0; start < len(all); start += atOnce {
		out, err := templateAll(t, all[start:min(start+atOnce, len(all))])
		require.NoError(t, err)
		for _, text := range documents(out) {
			count++
			if from := source.FindStringSubmatch(text); from != nil {
				i, err := strconv.Atoi(from[1][1:])
				require.NoError(t, err)
				// Each of the dependencies has a name of its own, in the comment and in the chart's label.
				seen[strings.ReplaceAll(strings.Replace(text, from[0], "# ", 1), from[1]+"-", "meshcni-")] = names[start+i]
			}
		}
	}
	for text, name := range seen {
		o, ok := parseOne(t, text)
		if !ok {
			continue
		}
		for _, each := range append(podsOf(t, o), o) {
			text, err := json.Marshal(each.Object)
			require.NoError(t, err)
			distinct[string(text)] = name
		}
	}
	t.Logf("%d combinations, %d objects, %d different ones", len(all), count, len(distinct))
	assert.Greater(t, len(distinct), 100)

	work := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for text := range work {
				if err := dryRun(admin, text); err != nil {
					t.Errorf("%s: %v\n%s", distinct[text], err, text)
				}
			}
		})
	}
	for text := range distinct {
		work <- text
	}
	close(work)
	workers.Wait()
}

// podsOf is the pod that a DaemonSet or Deployment would make.
func podsOf(t testing.TB, o unstructured.Unstructured) objects {
	t.Helper()
	if o.GetKind() != "DaemonSet" && o.GetKind() != "Deployment" {
		return nil
	}
	template, ok, err := unstructured.NestedMap(o.Object, "spec", "template")
	require.True(t, ok && err == nil)
	pod := unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetName(o.GetName())
	pod.SetNamespace(o.GetNamespace())
	return objects{pod}
}

func dryRun(admin *kubetest.Admin, text string) error {
	o := unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		return err
	}
	method, path := http.MethodPost, collection(o.GetAPIVersion(), o.GetKind(), o.GetNamespace())
	if o.GetKind() == "ServiceAccount" || o.GetKind() == "Namespace" { // of which some are there
		method, path = http.MethodPut, path+"/"+o.GetName()
	}
	return admin.Try(method, path+"?dryRun=All&fieldValidation=Strict", o.Object, nil)
}

// TestTheServerIsStrict: what the test above relies on.
func TestTheServerIsStrict(t *testing.T) {
	t.Parallel()
	admin := server(t)
	for what, v := range map[string]values{
		`strict decoding error: unknown field \"spec.template.spec.hostPid\"`: {"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": values{"name": "x", "namespace": namespace}, "spec": values{"template": values{"spec": values{"hostPid": true}}}},
		`unknown field \"spec.endpoints[0].every\"`:                           {"kind": "ServiceMonitor", "apiVersion": "monitoring.coreos.com/v1", "metadata": values{"name": "x", "namespace": namespace}, "spec": values{"selector": values{}, "endpoints": []values{{"port": "a", "every": "5s"}}}},
		`allowHostPID: Required value`:                                        {"kind": "SecurityContextConstraints", "apiVersion": "security.openshift.io/v1", "metadata": values{"name": "x"}},
		`unknown field \"spec.configuration\"`:                                {"kind": "NetworkAttachmentDefinition", "apiVersion": "k8s.cni.cncf.io/v1", "metadata": values{"name": "x", "namespace": "default"}, "spec": values{"configuration": "{}"}},
		`violates PodSecurity \"baseline:latest\"`:                            podIn(t, "guarded"),
	} {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		assert.ErrorContains(t, dryRun(admin, string(text)), what)
	}
}

// podIn is the agent's pod in another namespace.
func podIn(t testing.TB, namespace string) values {
	t.Helper()
	pod := podsOf(t, mustRender(t, values{}).of("DaemonSet")[0])[0]
	pod.SetNamespace(namespace)
	return values(pod.Object)
}

package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/longtest"
)

// TestMain runs the tests in the directory that they judge.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../deploy"); err != nil {
		panic(err)
	}
	os.Exit(kubetest.Main(m, kubetest.Options{}))
}

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

// combination is a platform, a mode of repair, a mesh and a way of chaining, by their names.
type combination [4]string

// combinations are such that each two of these meet; with the tag long all.
func combinations(t testing.TB) (all []combination) {
	t.Helper()
	chains := slices.Sorted(maps.Keys(chaining))
	for p, profile := range profiles(t) {
		for m, mode := range repairModes {
			for d, dialect := range everyMesh {
				for c, chain := range chains {
					if longtest.On || (p+m)%len(everyMesh) == d && (p+m)%len(chains) == c {
						all = append(all, combination{profile, mode.name, dialect, chain})
					}
				}
			}
		}
	}
	return all
}

// TestEachTwoAreCombined: what combinations says of itself.
func TestEachTwoAreCombined(t *testing.T) {
	t.Parallel()
	parts, met := [4]map[string]bool{{}, {}, {}, {}}, [4][4]map[[2]string]bool{}
	for _, all := range combinations(t) {
		for i := range all {
			parts[i][all[i]] = true
			for j := range i {
				if met[i][j] == nil {
					met[i][j] = map[[2]string]bool{}
				}
				met[i][j][[2]string{all[i], all[j]}] = true
			}
		}
	}
	assert.Equal(t, [4]int{len(profiles(t)), len(repairModes), len(everyMesh), len(chaining)}, [4]int{len(parts[0]), len(parts[1]), len(parts[2]), len(parts[3])})
	for i := range parts {
		for j := range i {
			assert.Len(t, met[i][j], len(parts[i])*len(parts[j]))
		}
	}
}

// everything is the combinations, and each option on its own and with ambient, on one of the platforms that have the most of their
// own; with the tag long on each of these.
func everything(t testing.TB) (all []values, names []string) {
	t.Helper()
	add := func(name string, v values) {
		all, names = append(all, v), append(names, name)
	}
	for _, c := range combinations(t) {
		mode := repairModes[slices.IndexFunc(repairModes, func(m repairMode) bool { return m.name == c[1] })]
		add(fmt.Sprintf("profile %q, repair %s, %s, %s", c[0], c[1], c[2], c[3]),
			values{"profile": c[0]}.with(mode.in(c[2])).with(chaining[c[3]]))
	}
	ofTheirOwn := []string{"", "gke", "openshift", "bottlerocket"}
	for o, option := range slices.Sorted(maps.Keys(options)) {
		v := options[option]
		for p, profile := range ofTheirOwn {
			if longtest.On || o%len(ofTheirOwn) == p {
				add(fmt.Sprintf("profile %q, %s", profile, option), values{"profile": profile}.with(v))
			}
			agent := v["agent"] // which ambient cannot do without
			if agent != "off" && agent != false && (longtest.On || (o+1)%len(ofTheirOwn) == p) {
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

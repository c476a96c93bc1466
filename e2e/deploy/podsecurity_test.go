package deploy_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// levels are those of Pod Security admission, from the strictest on.
var levels = []string{"restricted", "baseline", "privileged"}

// podsBelow are the pods that objects of the chart make, by kind and name.
func podsBelow(t *testing.T, all objects) map[string]unstructured.Unstructured {
	t.Helper()
	pods := map[string]unstructured.Unstructured{}
	for _, o := range all {
		name := o.GetKind() + " " + o.GetName()
		pod := unstructured.Unstructured{Object: o.Object}
		if template, ok, err := unstructured.NestedMap(o.Object, "spec", "template"); ok && err == nil {
			pod = unstructured.Unstructured{Object: template}
			pod.SetName(o.GetName())
		} else if o.GetKind() != "Pod" {
			continue
		}
		pod.SetAPIVersion("v1")
		pod.SetKind("Pod")
		pods[name] = pod
	}
	return pods
}

// TestPodSecurity has Pod Security admission of a real API server judge the pods of each mode in a namespace of each level: they are
// admitted at the level that docs/security.md states, and refused at the next stricter one.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	s := kubetest.Own(t, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}})
	admin := s.Admin(t)
	for _, level := range levels {
		namespace := values{"metadata": values{"name": level, "labels": values{"pod-security.kubernetes.io/enforce": level}}}
		admin.Do(t, http.MethodPost, collection("v1", "Namespace", ""), namespace, nil)
	}
	judge := func(pod unstructured.Unstructured, level string) error {
		pod.SetNamespace(level)
		text, err := json.Marshal(pod.Object)
		require.NoError(t, err)
		return dryRun(admin, string(text))
	}
	agent := map[string]string{"DaemonSet meshcni-node": "privileged", "DaemonSet meshcni-uninstall": "privileged", "DaemonSet meshcni-release": "privileged"}
	for name, test := range map[string]struct {
		values values
		// because is what the next stricter level says of the agent, less of which makes it no stricter.
		because []string
	}{
		"none":                 {values{}, []string{"hostPath volumes", "host namespaces"}},
		"label":                {values{"repair": values{"mode": "label"}}, []string{"hostPath volumes", "host namespaces"}},
		"delete":               {values{"repair": values{"mode": "delete"}}, []string{"hostPath volumes", "host namespaces"}},
		"repair":               {values{"repair": values{"mode": "repair"}}, []string{"hostPath volumes", "host namespaces", "non-default capabilities", "hostPID=true"}},
		"ambient":              {ambientOn, []string{"hostPath volumes", "host namespaces", "non-default capabilities", "hostPID=true"}},
		"on the pods' network": {values{"hostNetwork": false}, []string{"hostPath volumes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pods := podsBelow(t, mustRender(t, test.values))
			require.Contains(t, pods, "DaemonSet meshcni-node")
			require.Contains(t, pods, "Job meshcni-uninstall")
			require.Contains(t, pods, "Pod meshcni-test")
			for kind, pod := range pods {
				want := "restricted"
				switch {
				case agent[kind] != "":
					want = agent[kind]
				case kind == "Job meshcni-uninstall", kind == "Job meshcni-release": // on the host's network, since that of the pods may be gone
					want = "privileged"
				}
				at := slices.Index(levels, want)
				assert.NoError(t, judge(pod, want), "%s at %s", kind, want)
				if at == 0 {
					continue
				}
				err := judge(pod, levels[at-1])
				require.Error(t, err, "%s at %s", kind, levels[at-1])
				if kind == "DaemonSet meshcni-node" {
					for _, reason := range test.because {
						assert.ErrorContains(t, err, reason)
					}
					for _, reason := range []string{"privileged", "host namespaces", "non-default capabilities", "seccomp", "hostPort"} {
						if !slices.Contains(test.because, reason) {
							assert.NotContains(t, strings.ReplaceAll(err.Error(), "restricted", ""), reason+" (")
						}
					}
				}
			}
		})
	}
}

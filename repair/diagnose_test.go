package repair_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

func loadPod(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "pods", name+".json"))
	require.NoError(t, err)
	var pod corev1.Pod
	require.NoError(t, json.Unmarshal(b, &pod))
	return &pod
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	is := repair.CriteriaFor(meshcni.Identity{}, istio.New("kube-system"))
	with := func(change func(*repair.Criteria)) repair.Criteria {
		c := is
		change(&c)
		return c
	}
	other := func(container string, code int32, annotation string) repair.Criteria {
		return repair.Criteria{Containers: []string{container}, ExitCodes: []int32{code}, Annotation: annotation}
	}
	cases := []struct {
		name, pod string
		criteria  repair.Criteria
		want      status.Code
		candidate bool
	}{
		{"held back after failures", "crash-loop", is, statuscode.CheckFailed, true},
		{"between failure and restart", "just-failed", is, statuscode.CheckFailed, true},
		{"no last state yet", "first-failure", is, statuscode.CheckFailed, true},
		{"runs again", "running-again", is, statuscode.Checking, true},
		{"about to run in a new sandbox", "restarted-sandbox", is, statuscode.Checking, true},
		{"recovered since", "recovered", is, statuscode.Recovered, true},
		{"never broken", "passed", is, statuscode.CheckPassed, true},
		{"not run yet", "not-run", is, statuscode.NotChecked, true},
		{"scheduled, no status", "no-status", is, statuscode.NotChecked, true},
		{"another exit code", "other-exit-code", is, statuscode.OtherFailure, true},
		{"Job, restartPolicy Never", "job-failed", is, statuscode.CheckFailed, true},
		{"Job, restartPolicy OnFailure", "job-on-failure", is, statuscode.CheckFailed, true},
		{"completed", "job-succeeded", is, statuscode.Completed, false},
		{"completed after it was broken", "succeeded-after-failure", is, statuscode.Completed, false},
		{"deleting", "deleting", is, statuscode.Deleting, false},
		{"labelled already", "labelled", is, statuscode.Handled, true},
		{"label with another value", "labelled-otherwise", is, statuscode.CheckFailed, true},
		{"label means nothing here", "labelled", with(func(c *repair.Criteria) { c.HandledLabel = "" }), statuscode.CheckFailed, true},
		{"mirror pod", "mirror", is, statuscode.MirrorPod, false},
		{"not injected", "no-annotation", is, statuscode.NotMatched, false},
		{"annotation not asked for", "no-annotation", with(func(c *repair.Criteria) { c.Annotation, c.Policy = "", nil }), statuscode.CheckFailed, true},
		{"no check in the pod", "no-check", is, statuscode.NoCheck, false},
		{"host network", "host-network", is, statuscode.NotSelected, false},
		{"injection switched off", "inject-disabled", is, statuscode.NotSelected, false},
		{"excluded namespace", "crash-loop", repair.CriteriaFor(meshcni.Identity{}, istio.New("default")), statuscode.NotSelected, false},
		{"label selector", "crash-loop", with(func(c *repair.Criteria) { c.Labels = labels.SelectorFromSet(labels.Set{"app": "web"}) }), statuscode.CheckFailed, true},
		{"label selector, others", "crash-loop", with(func(c *repair.Criteria) { c.Labels = labels.SelectorFromSet(labels.Set{"app": "db"}) }), statuscode.NotMatched, false},
		{"field selector", "crash-loop", with(func(c *repair.Criteria) {
			c.Fields = fields.ParseSelectorOrDie("metadata.namespace!=kube-system,status.podIP=10.244.1.5")
		}), statuscode.CheckFailed, true},
		{"field selector, others", "crash-loop", with(func(c *repair.Criteria) {
			c.Fields = fields.ParseSelectorOrDie("spec.serviceAccountName=db")
		}), statuscode.NotMatched, false},
		{"message", "crash-loop", with(func(c *repair.Criteria) { c.Message = "not ready for Istio" }), statuscode.CheckFailed, true},
		{"another message", "crash-loop", with(func(c *repair.Criteria) { c.Message = "no route to host" }), statuscode.OtherFailure, true},
		{"other exit codes asked for", "other-exit-code", with(func(c *repair.Criteria) { c.ExitCodes = []int32{1, 126} }), statuscode.CheckFailed, true},
		{"Linkerd's validator", "linkerd", repair.CriteriaFor(meshcni.Identity{}, linkerd.New()), statuscode.CheckFailed, true},
		{"Linkerd's validator, by hand", "linkerd", other("linkerd-network-validator", 95, ""), statuscode.CheckFailed, true},
		{"Linkerd's validator, Istio's criteria", "linkerd", with(func(c *repair.Criteria) { c.Annotation = "" }), statuscode.NoCheck, false},
		{"Kuma's validator", "kuma", repair.CriteriaFor(meshcni.Identity{}, kuma.New()), statuscode.CheckFailed, true},
		{"Kuma's validator, by hand", "kuma", other("kuma-validation", 1, "kuma.io/sidecar-injected"), statuscode.CheckFailed, true},
		{"zero criteria", "crash-loop", repair.Criteria{}, statuscode.NoCheck, false},
	}
	seen := map[status.Code]bool{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pod := loadPod(t, c.pod)
			before := pod.DeepCopy()
			f := repair.Diagnose(pod, c.criteria)
			assert.Equal(t, c.want, f.Reason, f.Detail)
			assert.Equal(t, c.want == statuscode.CheckFailed, f.Broken)
			assert.Equal(t, c.candidate, f.Candidate)
			assert.NotEmpty(t, f.Detail)
			assert.Equal(t, before, pod, "the pod is only read")
			// What the informer keeps of a pod tells the same.
			assert.Equal(t, f, repair.Diagnose(podkeep.Trim(pod), c.criteria), "after Trim")
		})
		seen[c.want] = true
	}
	seen[statuscode.NotCaptured] = true // not Diagnose's
	for _, r := range status.Codes(status.KindCheck) {
		assert.True(t, seen[r], "no case for reason %s", r)
	}
}

func TestDiagnoseSaysWhatFailed(t *testing.T) {
	t.Parallel()
	c := repair.CriteriaFor(meshcni.Identity{}, istio.New())
	f := repair.Diagnose(loadPod(t, "crash-loop"), c)
	assert.Equal(t, "istio-validation", f.Container)
	assert.Equal(t, int32(126), f.ExitCode)
	assert.Equal(t, time.Date(2026, 11, 20, 10, 4, 0, 0, time.UTC), f.FailedAt.UTC())
	assert.False(t, f.Final, "the kubelet will try again")

	f = repair.Diagnose(loadPod(t, "job-failed"), c)
	assert.True(t, f.Final, "the pod has failed for good")
	assert.False(t, repair.Diagnose(loadPod(t, "job-on-failure"), c).Final)
}

func TestCriteriaValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, repair.CriteriaFor(meshcni.Identity{}, istio.New()).Validate())
	require.NoError(t, repair.CriteriaFor(meshcni.Identity{}, linkerd.New()).Validate())
	require.NoError(t, repair.CriteriaFor(meshcni.Identity{}, kuma.New()).Validate())
	require.ErrorContains(t, repair.CriteriaFor(meshcni.Identity{}, consul.New()).Validate(), "this mesh names none")
	require.ErrorContains(t, repair.Criteria{}.Validate(), "no init container")
	require.ErrorContains(t, repair.Criteria{Containers: []string{"x"}}.Validate(), "no exit codes")
	require.ErrorContains(t, repair.Criteria{Containers: []string{"x"}, ExitCodes: []int32{0}}.Validate(), "success")
}

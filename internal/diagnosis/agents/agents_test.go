package agents

import (
	"testing"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestWhomToAsk: an agent is asked at its port once the kubelet says that it has started, since then nobody else has that.
func TestWhomToAsk(t *testing.T) {
	yes, no := true, false
	byExec := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"meshcni-node", "ready", "--start-socket=/s"}}}}
	other := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	byHTTP := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("health")}}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		probe   *corev1.Probe
		args    []string
		state   corev1.ContainerState
		started *bool
		port    int32
		trouble string
	}{
		"started":            {byExec, []string{"run", "--health-address=127.0.0.1:8000"}, running, &yes, 8000, ""},
		"the flag in two":    {byExec, []string{"run", "--health-address", "[::1]:9"}, running, &yes, 9, ""},
		"by HTTP":            {byHTTP, nil, running, &yes, 7000, ""},
		"an old kubelet":     {byHTTP, nil, running, nil, 7000, ""},
		"not started":        {byExec, []string{"--health-address=:8000"}, running, &no, 8000, "it has not started, so who answers at its port may be another program; its pod's events say why"},
		"it has ended":       {byExec, []string{"--health-address=:8000"}, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}, nil, 8000, "it has not started, so who"},
		"it serves nowhere":  {byExec, []string{"--health-address="}, running, &yes, 0, "its pod has neither"},
		"the probe says not": {other, []string{"--health-address=:8000"}, running, &yes, 0, "its pod has neither"},
	} {
		pod := &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "beside"}, {
				Name: "agent", Args: c.args, ReadinessProbe: c.probe, Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: 7000}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "beside", Started: &no}, {Name: "agent", State: c.state, Started: c.started}}},
		}
		a := agentOf(pod, &appsv1.DaemonSet{})
		assert.Equal(t, c.port, a.Port, name)
		if c.trouble == "" {
			assert.Empty(t, a.Trouble, name)
		} else {
			assert.Contains(t, a.Trouble, c.trouble, name)
		}
	}
}

package repair_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
)

// What a pod's status says of its redirection.
func ExampleDiagnose() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Annotations: map[string]string{istio.StatusAnnotation: "{}"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}, {Name: "istio-proxy"}}},
		Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{
			Name:                 "istio-validation",
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 126}},
		}}},
	}
	f := repair.Diagnose(pod, repair.CriteriaFor(meshcni.Identity{}, istio.New("kube-system")))
	fmt.Println(f.Broken, f.Reason)
	fmt.Println(f.Detail)

	pod.Status.InitContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0}}
	f = repair.Diagnose(pod, repair.CriteriaFor(meshcni.Identity{}, istio.New("kube-system")))
	fmt.Println(f.Broken, f.Reason)
	// Output:
	// true check-failed
	// init container istio-validation ended with exit code 126: redirection is missing
	// false recovered
}

package repair_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
)

// Whether a pod lacks its rules is told by its status alone.
func ExampleDiagnose() {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{istio.StatusAnnotation: "{}"}},
		Spec: corev1.PodSpec{
			NodeName:       "node-1",
			InitContainers: []corev1.Container{{Name: "istio-validation"}},
			Containers:     []corev1.Container{{Name: "istio-proxy"}},
		},
		Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{
			Name:                 "istio-validation",
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 126}},
		}}},
	}
	f := repair.Diagnose(pod, repair.CriteriaFor(istio.New()))
	fmt.Println(f.Broken, f.Reason, f.Container, f.ExitCode)
	// Output:
	// true check-failed istio-validation 126
}

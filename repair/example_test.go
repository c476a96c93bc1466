package repair_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
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

// A controller of one's own sees to the rules of running pods.
func ExampleInPlace() {
	pods := &repair.InPlace{Meshes: dialect.SetOf(istio.New("kube-system"))}
	mend := func(pod *corev1.Pod) error {
		differences, err := pods.Check(context.Background(), pod)
		switch {
		case errors.Is(err, repair.ErrNotSelected):
			return nil // it should have none
		case errors.Is(err, repair.ErrNoProcess):
			return fmt.Errorf("to be tried again: %w", err)
		case err != nil || len(differences) == 0:
			return err
		}
		_, err = pods.Apply(context.Background(), pod)
		return err
	}

	outside := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "6d4b6b58-0000-4000-8000-000000000001"}}
	fmt.Println(mend(outside))

	refused := outside.DeepCopy()
	refused.Annotations = map[string]string{istio.StatusAnnotation: "{}", istio.ExcludeInboundPorts: "http"}
	refused.Spec.Containers = []corev1.Container{{Name: "web"}, {Name: "istio-proxy"}}
	refused.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}}
	fmt.Println(errors.Is(mend(refused), repair.ErrRefused))
	// Output:
	// <nil>
	// true
}

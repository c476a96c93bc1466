package dialecttest_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// What a case's pod gets, without a kernel; [dialecttest.Fates] goes on to apply it.
func ExampleCase_Rules() {
	c := dialecttest.Case{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "linkerd-proxy"}}},
	}}
	rules, redirect, err := c.Rules(linkerd.New())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(redirect)
	for _, f := range ruleset.Families {
		fmt.Println(f, rules.Family(f).NumRules(), "rules")
	}
	// Output:
	// REDIRECT in * -> :4143 except 4190,4191; out * -> :4140; proxy uid [2102] gid []; ipv4 capture ipv6 capture
	// ipv4 11 rules
	// ipv6 11 rules
}

package daemonset

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/readytaint"
)

func required(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	label := func(operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: operator, Values: values}}}
	}
	name := func(operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: operator, Values: values}}}
	}
	taint := func(key, value string, effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: key, Value: value, Effect: effect}}
	}
	tolerates := func(key string, operator corev1.TolerationOperator, value string, effect corev1.TaintEffect) corev1.PodSpec {
		return corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "other", Operator: "Exists"}, {Key: key, Operator: operator, Value: value, Effect: effect}}}
	}
	const wanted, leftOut, keptOff = readytaint.ForAgents, readytaint.NotForAgents, readytaint.KeptOff
	for what, c := range map[string]struct {
		spec   corev1.PodSpec
		taints []corev1.Taint
		system string
		want   readytaint.Place
		unsure bool
	}{
		"nothing asked":              {want: wanted},
		"its selector":               {spec: corev1.PodSpec{NodeSelector: map[string]string{"pool": "a"}}, want: wanted},
		"another selector":           {spec: corev1.PodSpec{NodeSelector: map[string]string{"pool": "b"}}, want: leftOut},
		"a selector of no label":     {spec: corev1.PodSpec{NodeSelector: map[string]string{"mesh": "a"}}, want: leftOut},
		"affinity in":                {spec: corev1.PodSpec{Affinity: required(label("In", "b", "a"))}, want: wanted},
		"affinity not in":            {spec: corev1.PodSpec{Affinity: required(label("NotIn", "a"))}, want: leftOut},
		"one of two terms":           {spec: corev1.PodSpec{Affinity: required(label("DoesNotExist"), label("Exists"))}, want: wanted},
		"by its name":                {spec: corev1.PodSpec{Affinity: required(name("In", "n1"))}, want: wanted},
		"by another's name":          {spec: corev1.PodSpec{Affinity: required(name("In", "n2"))}, want: leftOut},
		"affinity, not the selector": {spec: corev1.PodSpec{NodeSelector: map[string]string{"pool": "b"}, Affinity: required(label("Exists"))}, want: leftOut},
		"no terms":                   {spec: corev1.PodSpec{Affinity: required()}, want: leftOut},
		"affinity of no sense":       {spec: corev1.PodSpec{Affinity: required(label("Near", "a"))}, want: keptOff, unsure: true},
		"Windows":                    {system: "windows", want: leftOut},

		"a taint":                   {taints: taint("gpu", "yes", "NoSchedule"), want: keptOff},
		"one that evicts":           {taints: taint("gpu", "", "NoExecute"), want: keptOff},
		"one that asks":             {taints: taint("gpu", "", "PreferNoSchedule"), want: wanted},
		"ours":                      {taints: taint("ours", "", "NoSchedule"), want: wanted},
		"cordoned":                  {taints: taint("node.kubernetes.io/unschedulable", "", "NoSchedule"), want: wanted},
		"not reached":               {taints: taint("node.kubernetes.io/unreachable", "", "NoExecute"), want: wanted},
		"tolerated":                 {spec: tolerates("gpu", "", "yes", ""), taints: taint("gpu", "yes", "NoSchedule"), want: wanted},
		"tolerated as Equal":        {spec: tolerates("gpu", "Equal", "yes", "NoSchedule"), taints: taint("gpu", "yes", "NoSchedule"), want: wanted},
		"tolerated as any value":    {spec: tolerates("gpu", "Exists", "", ""), taints: taint("gpu", "yes", "NoSchedule"), want: wanted},
		"all tolerated":             {spec: tolerates("", "Exists", "", ""), taints: taint("gpu", "yes", "NoExecute"), want: wanted},
		"another value tolerated":   {spec: tolerates("gpu", "Equal", "no", ""), taints: taint("gpu", "yes", "NoSchedule"), want: keptOff},
		"another effect tolerated":  {spec: tolerates("gpu", "Exists", "", "NoSchedule"), taints: taint("gpu", "yes", "NoExecute"), want: keptOff},
		"a toleration of new kind":  {spec: tolerates("gpu", "Gt", "5", ""), taints: taint("gpu", "6", "NoSchedule"), want: keptOff, unsure: true},
		"a new kind is not asked":   {spec: tolerates("gpu", "Gt", "5", ""), taints: taint("other", "6", "NoSchedule"), want: wanted},
		"one of two taints":         {spec: tolerates("gpu", "Exists", "", ""), taints: append(taint("gpu", "", "NoExecute"), taint("disk", "", "NoSchedule")...), want: keptOff},
		"selector before the taint": {spec: corev1.PodSpec{NodeSelector: map[string]string{"pool": "b"}}, taints: taint("gpu", "", "NoSchedule"), want: leftOut},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "a"}}, Spec: corev1.NodeSpec{Taints: c.taints}}
		node.Status.NodeInfo.OperatingSystem = c.system
		got, why, err := Place(node, &c.spec, "ours")
		assert.Equal(t, c.want, got, what)
		assert.Equal(t, c.unsure, err != nil, "%s: %v", what, err)
		assert.Equal(t, c.want != wanted && !c.unsure, why != "", "%s: %s", what, why)
	}
}

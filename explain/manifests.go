package explain

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/remedy"
	"github.com/meshcni/meshcni/internal/text/documents"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

// ManifestCheck is a check of manifests before they are in a cluster.
type ManifestCheck struct {
	// Files are texts of YAML or JSON with any number of objects, by the names that findings have. A document is at most
	// 8 MiB.
	Files map[string][]byte
	// Namespace is that of objects that name none. Default: default.
	Namespace string
	// AsInjected puts the mesh's proxy into pods that have none as its injector would, with the settings of the pod alone: into those that
	// the pod or its namespace asks for. A namespace that is not among the Files counts as one that asks for it.
	// Default: pods are taken as they are, and one whose namespace decides and is not among the Files is undecided.
	AsInjected bool
	// Lenient passes over fields that this program's version of Kubernetes does not have. Default: each is a finding.
	Lenient bool
	// Each is the same for every pod: its Subject's Pod and Namespace, and Template, are not read.
	Each Input
}

// ManifestReport holds the findings of [CheckManifests].
type ManifestReport struct {
	Pods []CheckedPod `json:"pods"`
	// Unreadable are the findings of no pod.
	Unreadable []Finding `json:"unreadable"`
	// PassedOver counts the objects that make no pod by their kinds, with the group behind a dot if there is one.
	PassedOver map[string]int `json:"passedOver"`
}

// CheckedPod is a pod, or the template of a workload.
type CheckedPod struct {
	File string `json:"file"`
	// Line is the first of the object.
	Line int `json:"line"`
	// Object is its kind and name, such as "Deployment shop/cart".
	Object   string    `json:"object"`
	Verdict  Verdict   `json:"verdict"`
	Findings []Finding `json:"findings"`
	// Explanation is all of it. Its zero value: no decision was reached.
	Explanation Explanation `json:"-"`
}

// FindingKinds are the kinds of a [Finding]: a text or an object that is not as Kubernetes has it; a pod of which it cannot be told whether
// a mesh has it; one that the plugin refuses; one in the mesh of which nothing is captured; a way past the mesh that is sure to be open, and
// that somebody has asked for; a setting that was ignored or tolerated; and a pod that no mesh has. The first two always fail a check.
var FindingKinds = []string{unreadable, undecided, "refused", string(status.CodeNothingCaptured), "bypass", "warning", "outside"}

const (
	unreadable = "unreadable"
	undecided  = "undecided"
)

// Finding is something that a check of manifests finds.
type Finding struct {
	File string `json:"file"`
	// Line is that of the setting if it is in the text, else of what has it.
	Line int `json:"line"`
	// Object is as that of a [CheckedPod]; empty: it is not known.
	Object string `json:"object,omitempty"`
	// Kind is one of the [FindingKinds]. Code is the verdict's, or that of a bypass or a warning; empty: there is none.
	Kind string `json:"kind"`
	Code string `json:"code,omitempty"`
	// Text says what was found, and Do what to do about it.
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
}

// String returns "FILE:LINE: OBJECT: KIND: TEXT".
func (f Finding) String() string {
	object := f.Object
	if object != "" {
		object += ": "
	}
	return fmt.Sprintf("%s:%d: %s%s: %s", f.File, f.Line, object, f.Kind, f.Text)
}

// Failing returns the findings of these kinds, and in any case what could not be read or decided.
func (r ManifestReport) Failing(kinds ...string) (all []Finding) {
	fails := func(f Finding) bool {
		return f.Kind == unreadable || f.Kind == undecided || slices.Contains(kinds, f.Kind)
	}
	all = append(all, r.Unreadable...)
	for _, p := range r.Pods {
		all = append(all, slices.DeleteFunc(slices.Clone(p.Findings), func(f Finding) bool { return !fails(f) })...)
	}
	return all
}

// maxChecked bounds the pods of a check, each of whose explanations takes kilobytes and a millisecond.
const maxChecked = 10_000

// CheckManifests explains every pod and every template of pods in manifests, as the plugin with these meshes would decide. It takes Pods,
// the workloads of Kubernetes, Rollouts of Argo, and Lists of them; of Namespaces in the same manifests it knows the labels and annotations.
// Others are counted. What is wrong is a finding, and all of it is found.
func CheckManifests(meshes dialect.Set, c ManifestCheck) ManifestReport {
	c.Namespace = cmp.Or(c.Namespace, corev1.NamespaceDefault)
	m := &manifests{ManifestCheck: c, meshes: meshes, namespaces: map[string]*corev1.Namespace{}, from: map[string]Finding{}}
	m.report = ManifestReport{Pods: []CheckedPod{}, Unreadable: []Finding{}, PassedOver: map[string]int{}}
	for _, file := range slices.Sorted(maps.Keys(c.Files)) {
		m.read(file, c.Files[file])
	}
	for _, o := range m.pods {
		m.explain(o)
	}
	return m.report
}

// manifests is a check in progress.
type manifests struct {
	ManifestCheck
	meshes     dialect.Set
	pods       []*object
	namespaces map[string]*corev1.Namespace
	from       map[string]Finding // where each of them is
	report     ManifestReport
	full       bool
}

// object is one of a document.
type object struct {
	file     string
	document *documents.Document
	path     []any // to the object in its document
	raw      json.RawMessage
	metav1.TypeMeta
	metadata metav1.ObjectMeta

	template []any // the path to the template of pods in the object; empty: it is a pod
	pod      *corev1.Pod
	nested   int // in how many lists
}

func (o *object) line(path ...any) int { return o.document.Place(slices.Concat(o.path, path)...) }

func (o *object) String() string {
	if o.metadata.Name+o.metadata.GenerateName == "" {
		return truncate.Text(o.Kind, maxKind)
	}
	return fmt.Sprintf("%s %s/%s", o.Kind, o.metadata.Namespace, cmp.Or(o.metadata.Name, o.metadata.GenerateName))
}

// wrong adds a finding about what cannot be read.
func (m *manifests) wrong(o *object, line int, format string, args ...any) {
	f := Finding{File: o.file, Line: line, Kind: unreadable, Text: fmt.Sprintf(format, args...)}
	if o.Kind != "" {
		f.Object = o.String()
	}
	m.report.Unreadable = append(m.report.Unreadable, f)
}

func (m *manifests) read(file string, text []byte) {
	all, err := documents.Split(text)
	if err != nil {
		m.wrong(&object{file: file}, 1, "%s", err)
	}
	for _, d := range all {
		raw, errs := d.JSON()
		for _, err := range errs {
			at := &documents.Error{Line: d.Line, Err: err}
			errors.As(err, &at)
			m.wrong(&object{file: file}, at.Line, "%s", at.Err)
		}
		if len(errs) > 0 || string(raw) == "null" {
			continue
		}
		m.sort(&object{file: file, document: d, raw: raw})
	}
}

// sort sorts an object in, and those of a list in its place, so that findings are in the order of the text.
func (m *manifests) sort(o *object) {
	for _, item := range m.object(o) {
		m.sort(item)
	}
}

// maxNested bounds lists within lists, each of which is read once for each that it is in.
const maxNested = 8

// object sorts an object in, and returns those of a list.
func (m *manifests) object(o *object) (items []*object) {
	var head metav1.TypeMeta
	err := json.Unmarshal(o.raw, &head)
	o.Kind, o.APIVersion = cmp.Or(head.Kind, o.Kind), cmp.Or(head.APIVersion, o.APIVersion) // those of a typed list need not say what they are
	group, _, grouped := strings.Cut(o.APIVersion, "/")
	if !grouped {
		group = ""
	}
	element, list := strings.CutSuffix(o.Kind, "List")
	_, typed := kinds[element]
	list = list && (typed || element == "")
	kind, known := kinds[o.Kind]
	switch {
	case err != nil:
		m.wrong(o, o.line(), "it is no object with an apiVersion and a kind")
	case o.Kind == "" && !hasFields(o.raw, "metadata", "spec", "items"):
		m.report.PassedOver["no kind"]++ // values of a chart or its Chart.yaml, say
	case o.Kind == "":
		m.wrong(o, o.line(), "the object has no kind")
	case o.APIVersion == "":
		m.wrong(o, o.line(), "the object has no apiVersion")
	case list && o.nested >= maxNested:
		m.wrong(o, o.line(), "lists are in one another, more than %d", maxNested)
	case list:
		return m.items(o, element)
	case !known:
		for name := range kinds {
			if strings.EqualFold(name, o.Kind) {
				m.wrong(o, o.line("kind"), "the kind %s is written %s", truncate.Quote(o.Kind), name)
				return nil
			}
		}
		fallthrough
	case !slices.Contains(kind.groups, group):
		name := truncate.Text(o.Kind, maxKind)
		if group != "" {
			name += "." + truncate.Text(group, maxKind)
		}
		m.report.PassedOver[name]++
	default:
		m.known(o, kind)
	}
	return nil
}

// maxKind bounds what is repeated of a kind or a group, in bytes.
const maxKind = 100

func hasFields(raw json.RawMessage, names ...string) bool {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields)
	return slices.ContainsFunc(names, func(name string) bool { return fields[name] != nil })
}

// items returns the objects of a list, which of a typed one are of the element's kind.
func (m *manifests) items(o *object, element string) (items []*object) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(o.raw, &list); err != nil {
		m.wrong(o, o.line("items"), "%s", plainJSON(err))
	}
	typ := metav1.TypeMeta{}
	if element != "" {
		typ = metav1.TypeMeta{Kind: element, APIVersion: o.APIVersion}
	}
	for i, raw := range list.Items {
		items = append(items, &object{file: o.file, document: o.document, path: slices.Concat(o.path, []any{"items", i}), raw: raw, TypeMeta: typ, nested: o.nested + 1})
	}
	return items
}

// known reads an object of a kind that is looked at.
func (m *manifests) known(o *object, kind kind) {
	var head struct {
		Metadata struct {
			Name         string `json:"name"`
			GenerateName string `json:"generateName"`
			Namespace    string `json:"namespace"`
		} `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(o.raw, &head); err != nil {
		m.wrong(o, o.line("metadata"), "%s", plainJSON(err))
		return
	}
	o.metadata.Name, o.metadata.GenerateName, o.metadata.Namespace = head.Metadata.Name, head.Metadata.GenerateName, cmp.Or(head.Metadata.Namespace, m.Namespace)
	if !m.named(o) {
		return
	}
	if o.Kind == "Namespace" {
		m.namespace(o)
		return
	}
	raw := o.raw
	for _, step := range kind.template {
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(raw, &fields)
		raw = fields[step.(string)]
	}
	switch {
	case o.Kind == "Rollout" && (raw == nil || string(raw) == "null") && hasFields(field(o.raw, "spec"), "workloadRef"):
		m.report.PassedOver["Rollout.argoproj.io of another's template"]++
		return
	case raw == nil || string(raw) == "null":
		m.wrong(o, o.line("spec"), "the %s has no template of pods (%s)", o.Kind, dotted(kind.template))
		return
	case len(m.pods) >= maxChecked:
		if !m.full {
			m.wrong(o, o.line(), "more than %d pods: check the rest by itself", maxChecked)
		}
		m.full = true
		return
	}
	var pod corev1.Pod
	var ok bool
	if kind.template == nil {
		ok = decodeStrictly(m, o, raw, &pod)
	} else {
		var template corev1.PodTemplateSpec
		ok = decodeStrictly(m, o, raw, &template, kind.template...)
		pod.ObjectMeta, pod.Spec = template.ObjectMeta, template.Spec
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: o.APIVersion, Kind: o.Kind, Name: cmp.Or(o.metadata.Name, o.metadata.GenerateName), Controller: &controller}}
	}
	if ok {
		pod.Name, pod.Namespace = cmp.Or(o.metadata.Name, o.metadata.GenerateName), o.metadata.Namespace
		o.pod, o.template = &pod, kind.template
		m.pods = append(m.pods, o)
	}
}

func field(raw json.RawMessage, name string) json.RawMessage {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields)
	return fields[name]
}

// named reports whether the object's names are some. Messages contain them, and a line break in one would forge a line.
func (m *manifests) named(o *object) bool {
	names := []string{o.metadata.Name, o.metadata.GenerateName, o.metadata.Namespace}
	for i, field := range []string{"name", "generateName", "namespace"} {
		if name := names[i]; !isName(name) {
			at := o.line("metadata", field)
			o.metadata = metav1.ObjectMeta{Name: "?", Namespace: "?"}
			m.wrong(o, at, "%s is no name", truncate.Quote(name))
			return false
		}
	}
	if o.metadata.Name == "" && o.metadata.GenerateName == "" {
		o.metadata.Name = "?"
		m.wrong(o, o.line("metadata"), "the object has neither a name nor a generateName")
		return false
	}
	return true
}

// decodeStrictly decodes what is at a path of the object. What no field is for, or is there twice, is a finding, but in a status, which is
// the cluster's.
func decodeStrictly[T any](m *manifests, o *object, raw json.RawMessage, into *T, path ...any) bool {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		m.mistyped(o, raw, path, err)
		return false
	}
	for _, err := range strict {
		field, ok := err.(kjson.FieldError)
		if !ok || m.Lenient && strings.HasPrefix(err.Error(), "unknown field") || strings.HasPrefix(field.FieldPath(), "status.") || field.FieldPath() == "status" {
			continue
		}
		at := slices.Concat(path, documents.Path(field.FieldPath()))
		what := "Kubernetes has no field %s here"
		if strings.HasPrefix(err.Error(), "duplicate") {
			what = "the field %s is there twice"
		}
		m.wrong(o, o.line(at...), what, truncate.Quote(dotted(at)))
	}
	return true
}

// mistyped adds findings about values of another type than Kubernetes has for them: of each label, annotation and variable that is no string,
// else of the first that the decoder names.
func (m *manifests) mistyped(o *object, raw json.RawMessage, path []any, err error) {
	found := false
	noString := func(value json.RawMessage, at ...any) {
		if len(value) > 0 && value[0] != '"' && string(value) != "null" {
			found = true
			at = slices.Concat(path, at)
			m.wrong(o, o.line(at...), "%s is %s, and no string: put it in quotes", truncate.Quote(dotted(at)), truncate.Text(string(value), maxKind))
		}
	}
	for _, kind := range []string{remedy.Labels, remedy.Annotations} {
		var values map[string]json.RawMessage
		_ = json.Unmarshal(field(field(raw, "metadata"), kind), &values)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			noString(values[key], "metadata", kind, key)
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		var containers []struct {
			Env []struct {
				Value json.RawMessage `json:"value"`
			} `json:"env"`
		}
		_ = json.Unmarshal(field(field(raw, "spec"), list), &containers)
		for i, c := range containers {
			for j, e := range c.Env {
				noString(e.Value, "spec", list, i, "env", j, "value")
			}
		}
	}
	if !found {
		m.wrong(o, o.line(path...), "%s", plainJSON(err))
	}
}

// plainJSON is a decoder's error without what means something to programs in Go alone.
func plainJSON(err error) string {
	text := strings.TrimPrefix(err.Error(), "json: ")
	text = strings.Replace(text, "cannot unmarshal ", "cannot take ", 1)
	return strings.Replace(text, "into Go struct field ", "for ", 1)
}

func dotted(path []any) string {
	text := ""
	for _, step := range path {
		switch step := step.(type) {
		case int:
			text += "[" + strconv.Itoa(step) + "]"
		case string:
			text += "." + step
		}
	}
	return strings.TrimPrefix(text, ".")
}

// namespace keeps one. The API server gives each a label with its name.
func (m *manifests) namespace(o *object) {
	var ns corev1.Namespace
	if !decodeStrictly(m, o, o.raw, &ns) {
		return
	}
	o.metadata.Namespace = ""
	ns = *withName(&ns)
	if other := m.namespaces[ns.Name]; other != nil && (!maps.Equal(other.Labels, ns.Labels) || !maps.Equal(other.Annotations, ns.Annotations)) {
		m.wrong(o, o.line(), "the namespace is also in %s, line %d, with other labels or annotations", m.from[ns.Name].File, m.from[ns.Name].Line)
		return
	}
	m.namespaces[ns.Name], m.from[ns.Name] = &ns, Finding{File: o.file, Line: o.line()}
}

func withName(ns *corev1.Namespace) *corev1.Namespace {
	ns = ns.DeepCopy()
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
	return ns
}

// explain adds a pod with its findings.
func (m *manifests) explain(o *object) {
	in := m.Each
	in.Subject.Pod, in.Subject.Namespace, in.Template = o.pod, m.namespaces[o.pod.Namespace], o.template != nil
	if m.AsInjected {
		m.inject(&in)
	}
	if len(in.Subject.Addrs) == 0 {
		in.Subject.Addrs = Addrs(o.pod)
	}
	p := CheckedPod{File: o.file, Line: o.line(), Object: o.String(), Findings: []Finding{}}
	add := func(line int, kind string, code status.Code, text, do string) {
		p.Findings = append(p.Findings, Finding{p.File, line, p.Object, kind, string(code), text, do})
	}
	x, err := Pod(m.meshes, in)
	p.Explanation, p.Verdict = x, x.Verdict
	v := x.Verdict
	switch {
	case err != nil:
		add(p.Line, undecided, "", err.Error(), "")
	case errors.Is(x.err, redirect.ErrNamespaceUnknown):
		add(p.Line, undecided, v.Code, v.Sentence, "Give the manifest of the namespace "+remedy.Word(o.pod.Namespace)+" too")
	case x.err != nil:
		for _, part := range parts(x.err) {
			add(o.blamed(part), "refused", v.Code, part.Error(), correct(o.pod, part))
		}
	case v.State == status.StateOutside:
		add(p.Line, "outside", v.Code, v.Sentence, strings.Join(v.Do, "; "))
	case v.Code == status.CodeNothingCaptured:
		add(p.Line, string(status.CodeNothingCaptured), v.Code, v.Sentence, strings.Join(v.Do, "; "))
	}
	for i, b := range x.Plan.Bypasses {
		if v.State != status.StateOutside && x.err == nil && i < len(v.Past) && !b.Unsure && !b.ByDefault() && v.Code != status.CodeNothingCaptured {
			add(o.container(b.Container), "bypass", status.Code(b.Code), v.Past[i].What, v.Past[i].Do)
		}
	}
	for _, w := range v.Warnings {
		add(p.Line, "warning", status.Code(w.Code), w.What, w.Do)
	}
	m.report.Pods = append(m.report.Pods, p)
}

// blamed returns the line of what an error is about.
func (o *object) blamed(err error) int {
	var setting *redirect.SettingError
	var bypass *dialect.BypassError
	var settings *dialect.SettingsError
	at := redirect.Origin{}
	switch {
	case errors.As(err, &setting):
		at = redirect.Origin{Source: setting.Source, Key: setting.Key}
	case errors.As(err, &bypass):
		return o.container(bypass.Container)
	case errors.As(err, &settings) && len(settings.Origins) > 0:
		at = settings.Origins[0]
	}
	return o.origin(at)
}

// origin returns the line of a setting of the pod.
func (o *object) origin(at redirect.Origin) int {
	switch at.Source {
	case redirect.FromAnnotation:
		key := at.Key
		for _, ok := o.pod.Annotations[key]; !ok && key != ""; _, ok = o.pod.Annotations[key] { // a key of the YAML or JSON in an annotation
			key = key[:max(strings.LastIndex(key, "."), 0)]
		}
		if key != "" {
			return o.line(slices.Concat(o.template, []any{"metadata", remedy.Annotations, key})...)
		}
	case redirect.FromLabel:
		return o.line(slices.Concat(o.template, []any{"metadata", remedy.Labels, at.Key})...)
	case redirect.FromEnv:
		for list, containers := range map[string][]corev1.Container{"initContainers": o.pod.Spec.InitContainers, "containers": o.pod.Spec.Containers} {
			for i, c := range containers {
				if j := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == at.Key }); j >= 0 {
					return o.line(slices.Concat(o.template, []any{"spec", list, i, "env", j})...)
				}
			}
		}
	case redirect.FromNamespace, redirect.FromSecurityContext, redirect.FromArgs, redirect.FromDefault:
	}
	return o.line()
}

// container returns the line of one.
func (o *object) container(name string) int {
	is := func(c corev1.Container) bool { return c.Name == name }
	if i := slices.IndexFunc(o.pod.Spec.Containers, is); i >= 0 {
		return o.line(slices.Concat(o.template, []any{"spec", "containers", i})...)
	}
	if i := slices.IndexFunc(o.pod.Spec.InitContainers, is); i >= 0 {
		return o.line(slices.Concat(o.template, []any{"spec", "initContainers", i})...)
	}
	return o.line()
}

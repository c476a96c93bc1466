package kuma

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

// parser reads a pod's configuration, and collects everything that is wrong.
type parser struct {
	dialect.Notes
	annotations map[string]string
	pod         *corev1.Pod
	r           redirect.Redirect

	inbound, outbound                bool
	includeOutbound, excludeOutbound redirect.PortSet
	excludeUsers                     []redirect.Exclusion
	excludeOutboundIPs               redirect.PrefixSet
	dns                              redirect.DNS // the Redirect's, if dnsEnabled
	dnsEnabled, dnsAll               bool
	probeProxy                       bool // it has a port
	log                              bool
	logLevel                         uint8
}

func newParser(pod *corev1.Pod) *parser {
	return &parser{
		annotations: pod.Annotations, pod: pod, r: DefaultRedirect(), inbound: true, outbound: true, logLevel: logLevel,
		dns: redirect.DNS{Servers: redirect.AllPrefixes(), Port: dnsPort, UDPOnly: true},
	}
}

// yaml reads the annotation with the whole configuration.
func (p *parser) yaml(d *document) {
	if d.err != nil {
		p.Refuse(Config, d.text, "YAML as Kuma's injector writes it", d.err)
		p.r.Proxy.UIDs = nil // whom it names is not known
		return
	}
	if len(d.unknown) > 0 {
		p.Warn(warning.Unknown, Config, "annotation %s has keys without effect, since nothing is known of them: %s", Config, some(d.unknown))
	}
	if d.ebpf {
		p.Warn(warning.NoEffect, Config+".ebpf", "annotation %s.ebpf has no effect: the pod is captured by rules", Config)
	}
	for _, s := range settings() {
		if values, ok := d.values[s.path]; ok && s.set != nil {
			s.apply(p, Config+"."+s.path, strings.Join(values, ","), values)
		}
	}
}

// longestCompared bounds the annotations that are compared with the YAML, in bytes: they have no effect, so they must not
// cost much.
const longestCompared = 8 << 10

// beside warns of annotations that the YAML does not agree with. They have no effect: Kuma's plugin does not read them, and
// those that the pod had when it was injected are in the YAML.
func (p *parser) beside() {
	for _, s := range settings() {
		value, ok := p.annotations[s.annotation]
		switch {
		case !ok || s.annotation == "":
			continue
		case len(value) > longestCompared:
			p.Warn(warning.NoEffect, s.annotation, "annotation %s has no effect: annotation %s alone counts; with %d bytes it is too long to say whether they agree", s.annotation, Config, len(value))
			continue
		}
		q := newParser(p.pod)
		if err := s.set(q, s.elements(value)); err == nil && (s.moot != nil && s.moot(p) || s.told(p, q)) {
			continue
		}
		p.Warn(warning.NoEffect, s.annotation, "annotation %s=%.64q has no effect: annotation %s, which says otherwise, alone counts", s.annotation, value, Config)
	}
}

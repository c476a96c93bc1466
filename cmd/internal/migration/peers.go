package migration

import (
	"errors"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// injectors say how a mesh's injector is told that a plugin writes the rules.
var injectors = map[string]string{
	"istio":   "Tell the injector that there is a plugin: pilot.cni.enabled=true of istiod's chart. New pods then have istio-validation instead of istio-init.",
	"linkerd": "Tell the injector that there is a plugin: cniEnabled=true of linkerd-control-plane's chart. New pods then have linkerd-network-validator instead of linkerd-init.",
	"kuma":    "Tell the injector that there is a plugin: KUMA_RUNTIME_KUBERNETES_INJECTOR_CNI_ENABLED=true in the control plane. New pods then have kuma-validation instead of kuma-init.",
	"consul":  "Tell the injector that there is a plugin: -enable-cni=true of connect-inject, which the chart sets with connectInject.cni.enabled.",
}

// has reports whether any word of a DaemonSet's containers satisfies is.
func has(ds *appsv1.DaemonSet, is func(string) bool) bool {
	for _, c := range ds.Spec.Template.Spec.Containers {
		if slices.ContainsFunc(slices.Concat(c.Command, c.Args), is) {
			return true
		}
	}
	return false
}

func takesFrom(ds *appsv1.DaemonSet, suffix string) bool {
	return slices.ContainsFunc(ConfigMaps(ds), func(name string) bool { return strings.HasSuffix(name, suffix) })
}

// peers are the plugins. What each one's installer reads is from its own repository, by the chart that deploys it.
var peers = []Peer{
	{
		Name: "istio-cni", Dialect: "istio", rules: istioRules,
		recognise: func(ds *appsv1.DaemonSet) bool {
			return ds.Labels["k8s-app"] == "istio-cni-node" || ds.Labels["app.kubernetes.io/name"] == "istio-cni" || takesFrom(ds, "istio-cni-config")
		},
		remove: []string{
			"Remove the other: helm uninstall istio-cni (or components.cni.enabled=false). Its agents take their entry and their binary out. Leave pilot.cni.enabled=true: it tells the injector that there is a plugin.",
		},
	},
	{
		Name: "linkerd-cni", Dialect: "linkerd", rules: linkerdSettings,
		recognise: func(ds *appsv1.DaemonSet) bool {
			return ds.Labels["k8s-app"] == "linkerd-cni" || ds.Labels["linkerd.io/cni-resource"] == "true" || takesFrom(ds, "linkerd-cni-config")
		},
		remove: []string{
			"Remove the other: helm uninstall linkerd2-cni. Its agents take their entry and their binary out. Leave cniEnabled=true: it tells the injector that there is a plugin.",
		},
	},
	{
		Name: "kuma-cni", Dialect: "kuma", rules: kumaRules,
		recognise: func(ds *appsv1.DaemonSet) bool {
			return takesFrom(ds, "-cni-config") && !takesFrom(ds, "istio-cni-config") && !takesFrom(ds, "linkerd-cni-config") &&
				has(ds, func(w string) bool { return strings.Contains(w, "/install-cni") }) || takesFrom(ds, "kuma-cni-config")
		},
		before: []string{
			"kuma's chart runs plugin and injector by one value: without cni.enabled the injector goes back to init containers. Keep KUMA_RUNTIME_KUBERNETES_INJECTOR_CNI_ENABLED=true in the control plane's variables.",
		},
		remove: []string{
			"Remove the other: cni.enabled=false of kuma's chart. Its agents take the binary out before the entry: pods that start in between are tried again by the kubelet.",
		},
	},
	{
		Name: "consul-cni", Dialect: "consul", rules: consulRules,
		recognise: func(ds *appsv1.DaemonSet) bool {
			return has(ds, func(w string) bool {
				return w == "consul-k8s-control-plane" || strings.HasSuffix(w, "/consul-k8s-control-plane")
			}) && has(ds, func(w string) bool { return w == "install-cni" })
		},
		before: []string{
			"Consul's chart runs plugin and injector by one value, connectInject.cni.enabled. Leave it on, and keep its DaemonSet off the nodes: delete the DaemonSet after each upgrade of that chart, or render it away.",
		},
		remove: []string{
			"Remove the other: kubectl delete its DaemonSet. Its agents take their entry, their binary and their credentials out.",
		},
	},
}

// --- What the rules are made of ------------------------------------------------------------------------------------------

func to(path string, as func(string) (any, error)) rule {
	return func(b *builder, s Setting) {
		if v, err := as(s.Value); err != nil {
			b.wrong(s, err)
		} else {
			b.keep(s, path, v)
		}
	}
}

func needless(why string) rule { return func(b *builder, s Setting) { b.needless(s, why) } }

// unless is for settings that need nothing as long as they have a usual value.
func unless(why, do string, rules bool, usual ...string) rule {
	return func(b *builder, s Setting) {
		if slices.Contains(usual, strings.ToLower(strings.TrimSpace(s.Value))) {
			b.needless(s, why)
		} else {
			b.undone(s, do, rules)
		}
	}
}

func text(v string) (any, error) {
	if strings.TrimSpace(v) == "" {
		return nil, errEmpty
	}
	return strings.TrimSpace(v), nil
}

var (
	errEmpty    = errors.New("it is empty")
	errRelative = errors.New("it is no absolute path")
	errBool     = errors.New("it is neither true nor false")
	errLevel    = errors.New("it is none of debug, info, warn and error")
)

func path(v string) (any, error) {
	if !strings.HasPrefix(v, "/") {
		return nil, errRelative
	}
	return v, nil
}

func paths(v string) (any, error) {
	p, err := path(v)
	if err != nil {
		return nil, err
	}
	return []any{p}, nil
}

// truth reads a bool as strconv.ParseBool does, which all of the plugins use.
func truth(v string) (any, error) {
	switch strings.TrimSpace(v) {
	case "1", "t", "T", "true", "TRUE", "True":
		return true, nil
	case "0", "f", "F", "false", "FALSE", "False":
		return false, nil
	}
	return nil, errBool
}

func is(v string) bool {
	on, err := truth(v)
	return err == nil && on == true
}

func words(v string) []string {
	names := []string{}
	for name := range strings.SplitSeq(v, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func list(v string) (any, error) { return words(v), nil }

// level reads a level as loggers have it.
func level(v string) (any, error) {
	switch l := strings.ToLower(strings.TrimSpace(v)); l {
	case "debug", "info", "warn", "error":
		return l, nil
	case "trace", "all":
		return "debug", nil
	case "warning":
		return "warn", nil
	case "err", "fatal", "panic", "none", "off":
		return "error", nil
	}
	return nil, errLevel
}

// Reasons that several plugins share.
const (
	bookkeeping = "its installer's own"
	startWay    = "how its container starts"
)

package dialect_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// mine is a dialect that works.
func mine() dialect.Dialect {
	d := toy()
	d.Name = "mine-2"
	return d
}

func schemaOf(change func(*redirect.Schema)) func(dialect.Input) (dialect.Reading, error) {
	s := redirect.Schema{Defaults: redirect.Default()}
	s.Defaults.Names = toy().Names
	s.Settings = []redirect.Setting{{Field: "inbound.excludePorts", Keys: []string{"mine/skip"}}}
	change(&s)
	return dialect.FromSchema(s)
}

// TestValidate: each mistake is found, and all of them at once.
func TestValidate(t *testing.T) {
	require.NoError(t, mine().Validate())
	mistakes := map[string]func(*dialect.Dialect){
		`Name "" is not`:                        func(d *dialect.Dialect) { d.Name = "" },
		`Name "Mine" is not`:                    func(d *dialect.Dialect) { d.Name = "Mine" },
		`Name "a,b" is not`:                     func(d *dialect.Dialect) { d.Name = "a,b" },
		`Name "-a" is not`:                      func(d *dialect.Dialect) { d.Name = "-a" },
		"Build is nil":                          func(d *dialect.Dialect) { d.Build = nil },
		"ChainPrefix is \"OTHER_\", and \"TOY_": func(d *dialect.Dialect) { d.Names.ChainPrefix = "OTHER_" },
		"would not be found again":              func(d *dialect.Dialect) { d.Names.RouteTable++ },
		"Selectors is an empty list":            func(d *dialect.Dialect) { d.Policy.Selectors = []selection.Selector{} },
		"namespace selector 2": func(d *dialect.Dialect) {
			d.Policy.Selectors = []selection.Selector{{}, {Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}}
		},
		"pod selector 1": func(d *dialect.Dialect) {
			d.Policy.Selectors = []selection.Selector{{Pod: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}}}
		},
		"requirement 1 has no Keys": func(d *dialect.Dialect) { d.Policy.Required = []selection.Requirement{{Values: []string{"x"}}} },
		"without ProxyTypes":        func(d *dialect.Dialect) { d.Policy.ProxyCommand = "proxy" },
		"proxy.inboundPort: 0 is no port": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Defaults.Proxy.InboundPort = 0 })
		},
		"proxy.outboundPort: 0 is no port": func(d *dialect.Dialect) {
			d.Build = func(dialect.Input) (dialect.Reading, error) {
				r := redirect.Default()
				r.Proxy.OutboundPort = 0
				return dialect.Reading{Redirect: r}, nil
			}
		},
		`a Redirect has no field "inbound.exludePorts"`: func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Field = "inbound.exludePorts" })
		},
		`nothing is known about how to read field "dns"`: func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Field = "dns" })
		},
		"it has no Keys": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Keys = nil })
		},
		"cannot be Inherited": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Source, s.Settings[0].Inherited = redirect.FromEnv, true })
		},
		`and not from "label"`: func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Source = redirect.FromLabel })
		},
		"Add is for a field of ports": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Field, s.Settings[0].Add = "dropInvalid", true })
		},
		"neither is captured": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Defaults.IPv4, s.Defaults.IPv6 = redirect.FamilyPass, redirect.FamilyPass })
		},
		"exit code 0 of container": func(d *dialect.Dialect) { d.Check.Container = "check" },
		"a second one of its family": func(d *dialect.Dialect) {
			d.Check.ProbeAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
		},
		"Sandboxes needs": func(d *dialect.Dialect) { d.Sandboxes = &dialect.Sandboxes{Key: "MINE"} },
		"two different values": func(d *dialect.Dialect) {
			d.NodeProxy = &dialect.NodeProxy{StatusAnnotation: "mine/status", Enrolled: "on", Pending: "on"}
		},
		"InjectKey: no annotation can have the key \"a/b/c\"": func(d *dialect.Dialect) { d.Policy.InjectKey = "a/b/c" },
		"ForeignAnnotation: no annotation can":                func(d *dialect.Dialect) { d.Policy.ForeignAnnotation = "Mine_/x" },
		"nothing in a cluster can have the name \"My_Proxy\"": func(d *dialect.Dialect) { d.Policy.ProxyContainers = []string{"My_Proxy"} },
		"requirement 1: nothing in a cluster":                 func(d *dialect.Dialect) { d.Policy.Required = []selection.Requirement{{Keys: []string{"a b"}}} },
		"requirement 1 has an empty value": func(d *dialect.Dialect) {
			d.Policy.Required = []selection.Requirement{{Keys: []string{"a"}, Values: []string{""}}}
		},
		"ProxyTypes mean nothing": func(d *dialect.Dialect) { d.Policy.ProxyTypes = []string{"sidecar"} },
		"DisableEnv and ProxyCommand are of the proxy": func(d *dialect.Dialect) {
			d.Policy.ProxyContainers, d.Policy.DisableEnv = nil, "OFF"
		},
		"excludes every namespace": func(d *dialect.Dialect) {
			d.Policy.ExcludedNamespaceLabels = []labels.Selector{labels.SelectorFromSet(nil)}
		},
		"Build panics: boom": func(d *dialect.Dialect) {
			d.Build = func(dialect.Input) (dialect.Reading, error) { panic("boom") }
		},
		"neither NeedsNamespace nor a schema": func(d *dialect.Dialect) {
			own := d.Build
			d.NeedsNamespace, d.Build = false, func(in dialect.Input) (dialect.Reading, error) {
				_ = in.Namespace.Labels["zone"]
				return own(in)
			}
		},
		"whose annotations may have mine/inherited": func(d *dialect.Dialect) { // the schema does not go through Input.Read
			d.NeedsNamespace, d.Build = false, func(in dialect.Input) (r dialect.Reading, err error) {
				s := redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{{Field: "dropInvalid", Keys: []string{"mine/inherited"}, Inherited: true}}}
				r.Redirect, _, _, err = s.Build(in.Values())
				return r, err
			}
		},
		`setting 1 (mine/x): a Redirect has no field "inbound.prots"`: func(d *dialect.Dialect) {
			d.Build = func(in dialect.Input) (r dialect.Reading, err error) {
				s := redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{{Field: "inbound.prots", Keys: []string{"mine/x"}}}}
				r.Redirect, _, _, err = s.Build(in.Values())
				return r, err
			}
		},
		"no annotation can have this key": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Settings[0].Keys = []string{"mine//skip"} })
		},
		"Policy.ProxyContainers names none": func(d *dialect.Dialect) {
			d.Policy.ProxyContainers = nil
			d.Build = schemaOf(func(s *redirect.Schema) {
				s.Settings[0].Source, s.Settings[0].Keys = redirect.FromEnv, []string{"SKIP"}
			})
		},
		"Prefixes has an empty one": func(d *dialect.Dialect) {
			d.Build = schemaOf(func(s *redirect.Schema) { s.Prefixes = []string{""} })
		},
		`Domains have none of setting "mine/skip"`: func(d *dialect.Dialect) {
			d.Build, d.Domains = schemaOf(func(*redirect.Schema) {}), []string{"other.example"}
		},
		`Domains: "mine/" is no domain`: func(d *dialect.Dialect) {
			d.Build, d.Domains = schemaOf(func(*redirect.Schema) {}), []string{"mine", "mine/"}
		},
		"Check: no container can": func(d *dialect.Dialect) { d.Check.Container, d.Check.ExitCode = "Check", 1 },
		"NodeProxy: no annotation can": func(d *dialect.Dialect) {
			d.NodeProxy = &dialect.NodeProxy{StatusAnnotation: "a b", Enrolled: "on", Pending: "off"}
		},
	}
	for want, mistake := range mistakes {
		d := mine()
		mistake(&d)
		err := d.Validate()
		require.ErrorContains(t, err, want)
		var invalid *dialect.InvalidError
		require.ErrorAs(t, err, &invalid)
		assert.Equal(t, d.Name, invalid.Dialect)
		assert.ErrorContains(t, dialect.Validate([]dialect.Dialect{toy(), d}), want)

		// With two more, all three are named.
		if d.Build != nil {
			d.Policy.Traces, d.Applied = []string{""}, map[string]string{"": "x"}
			err = d.Validate()
			for _, want := range []string{want, "Traces has an empty name", "Applied has an annotation without a name"} {
				assert.ErrorContains(t, err, want)
			}
		}
	}
	err := dialect.Validate([]dialect.Dialect{mine(), toy(), mine()})
	require.ErrorContains(t, err, "dialect mine-2: two dialects have this name")
	require.NoError(t, dialect.Validate([]dialect.Dialect{mine(), toy()}))
	require.EqualError(t, dialect.Validate(nil), "no mesh is configured")
}

// TestOwnPodsOnly: a Build that relies on what its Policy demands of a pod, or demands it itself, is no mistake.
func TestOwnPodsOnly(t *testing.T) {
	d := mine()
	own := d.Build
	d.Build = func(in dialect.Input) (r dialect.Reading, _ error) {
		_ = in.Pod.Annotations["mine/port"][0]
		return own(in)
	}
	require.ErrorContains(t, d.Validate(), "Build panics: runtime error: index out of range")
	d.Policy.Required = []selection.Requirement{{Keys: []string{"mine/port"}}}
	require.NoError(t, d.Validate())
	d.Policy.Required = nil
	d.Build = func(dialect.Input) (dialect.Reading, error) {
		return dialect.Reading{}, fmt.Errorf("annotation mine/config is absent")
	}
	require.NoError(t, d.Validate())
}

// TestDeclinePanics: a pod that cannot be decided about is refused for the dialect, whatever mesh comes after, and not contested.
func TestDeclinePanics(t *testing.T) {
	d := mine()
	d.Policy.Decline = func(pod *corev1.Pod, proxy *corev1.Container) (status.Code, string) {
		if proxy == nil {
			return "", ""
		}
		return "none", pod.Annotations["mine/port"][:1]
	}
	require.ErrorContains(t, d.Validate(), "its Policy.Decline panics: ")
	for _, l := range []dialect.Set{dialect.SetOf(d), dialect.SetOf(d, toy())} {
		p, err := l.Plan(dialect.Subject{Pod: toyPod(nil), Namespace: plain})
		var invalid *dialect.InvalidError
		require.ErrorAs(t, err, &invalid)
		assert.Equal(t, "mine-2", invalid.Dialect)
		assert.Equal(t, "mine-2", p.Dialect)
		assert.True(t, p.Decision.Selected && p.Decision.Undecided)
	}
	assert.False(t, d.ReadsNamespace(toyPod(nil)), "it would not help")
	p, err := dialect.SetOf(toy(), d).Plan(dialect.Subject{Pod: toyPod(nil), Namespace: plain})
	require.NoError(t, err)
	assert.Equal(t, "toy", p.Dialect)
	assert.Empty(t, p.Warnings, "nobody contests it")

	// It may rely on what the Policy demands, and needs to bear that only annotations are known.
	d.Policy.Required = []selection.Requirement{{Keys: []string{"mine/port"}}}
	require.NoError(t, d.Validate())
	d.Policy.Decline = func(_ *corev1.Pod, proxy *corev1.Container) (status.Code, string) { return "", proxy.Name }
	require.ErrorContains(t, d.Validate(), "by a pod's annotations alone, its Policy.Decline panics: ")
}

// TestWrongDialectIsNotThePodsFault: where nobody has validated it, a pod is refused for the dialect, and nothing panics.
func TestWrongDialectIsNotThePodsFault(t *testing.T) {
	for name, build := range map[string]func(dialect.Input) (dialect.Reading, error){
		"nil": nil,
		"panics for this pod": func(in dialect.Input) (dialect.Reading, error) {
			if in.Pod.Annotations["mine/skip"] != "" {
				panic("boom")
			}
			return dialect.Reading{Redirect: redirect.Default()}, nil
		},
		"port 0":      schemaOf(func(s *redirect.Schema) { s.Defaults.Proxy.InboundPort = 0 }),
		"field":       schemaOf(func(s *redirect.Schema) { s.Settings[0].Field = "inbound.exludePorts" }),
		"no families": schemaOf(func(s *redirect.Schema) { s.Defaults.IPv4, s.Defaults.IPv6 = redirect.FamilyPass, redirect.FamilyPass }),
		"one passes, one is dropped": schemaOf(func(s *redirect.Schema) {
			s.Defaults.IPv4, s.Defaults.IPv6 = redirect.FamilyPass, redirect.FamilyDrop
		}),
		"field that no pod sets": schemaOf(func(s *redirect.Schema) {
			s.Settings[0].Field, s.Settings[0].Keys = "inbound.exludePorts", []string{"mine/other"}
		}),
	} {
		d := mine()
		d.NeedsNamespace, d.Build = false, build
		for _, plan := range []func() (dialect.Plan, error){
			func() (dialect.Plan, error) {
				return d.Plan(dialect.Subject{Pod: toyPod(map[string]string{"mine/skip": "80"})}, dialect.Options{})
			},
			func() (dialect.Plan, error) {
				return dialect.SetOf(d, toy()).Plan(dialect.Subject{Pod: toyPod(map[string]string{"mine/skip": "80"}), Namespace: plain})
			},
		} {
			p, err := plan()
			var invalid *dialect.InvalidError
			require.ErrorAs(t, err, &invalid, name)
			assert.Equal(t, "mine-2", invalid.Dialect)
			assert.False(t, errors.As(err, new(*redirect.SettingError)), "%s: %v", name, err)
			assert.Nil(t, p.Ruleset.IPv4)
		}
	}
}

package redirect_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

// schema is of a mesh that is made up.
var schema = redirect.Schema{
	Defaults: redirect.Default(),
	RunAs:    true,
	Settings: []redirect.Setting{
		{
			Field: "inbound.ports", Source: redirect.FromAnnotation, Keys: []string{"m/in", "m/old-in"}, Allowed: "ports",
			Grammar: redirect.Grammar{All: true},
		},
		{
			Field: "outbound.cidrs", Source: redirect.FromAnnotation, Keys: []string{"m/cidrs"},
			Grammar: redirect.Grammar{All: true},
		},
		{
			Field: "excludeInterfaces", Source: redirect.FromAnnotation, Keys: []string{"m/interfaces"},
		},
		{
			Field: "dropInvalid", Source: redirect.FromEnv, Keys: []string{"DROP"}, Lenient: true,
		},
	},
}

func annotations(kv ...string) redirect.Values {
	g := redirect.Values{Annotations: map[string]string{}, Env: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		g.Annotations[kv[i]] = kv[i+1]
	}
	return g
}

// origin finds where a field came from.
func origin(t *testing.T, origins []redirect.Origin, field string) redirect.Origin {
	t.Helper()
	for _, o := range origins {
		if o.Field == field {
			return o
		}
	}
	require.Fail(t, "no origin", "of %s in %v", field, origins)
	return redirect.Origin{}
}

func TestSchemaTellsUnsetEmptyAndAllApart(t *testing.T) {
	for _, c := range []struct {
		given redirect.Values
		want  string
		from  redirect.Origin
	}{
		{annotations(), "*", redirect.Origin{Field: "inbound.ports", Source: redirect.FromDefault}},
		{redirect.Values{}, "*", redirect.Origin{Field: "inbound.ports", Source: redirect.FromDefault}},
		{annotations("m/in", ""), "none", redirect.Origin{Field: "inbound.ports", Source: redirect.FromAnnotation, Key: "m/in"}},
		{annotations("m/in", "*"), "*", redirect.Origin{Field: "inbound.ports", Source: redirect.FromAnnotation, Key: "m/in", Value: "*"}},
		{annotations("m/in", "80 ,81"), "80,81", redirect.Origin{Field: "inbound.ports", Source: redirect.FromAnnotation, Key: "m/in", Value: "80 ,81"}},
	} {
		r, origins, warnings, err := schema.Build(c.given)
		require.NoError(t, err)
		assert.Equal(t, c.want, r.Inbound.Ports.String())
		assert.Equal(t, c.from, origin(t, origins, "inbound.ports"))
		assert.Empty(t, warnings)
	}
}

func TestSchemaDeprecatedKey(t *testing.T) {
	r, origins, warnings, err := schema.Build(annotations("m/old-in", "80"))
	require.NoError(t, err)
	assert.Equal(t, "80", r.Inbound.Ports.String())
	assert.Equal(t, "m/old-in", origin(t, origins, "inbound.ports").Key)
	assert.Equal(t, warning.List{{
		Code: warning.Deprecated, Key: "m/old-in", Text: "annotation m/old-in is deprecated: use m/in",
	}}, warnings)

	r, _, warnings, err = schema.Build(annotations("m/old-in", "80", "m/in", ""))
	require.NoError(t, err)
	assert.True(t, r.Inbound.Ports.Empty(), "the first key that is there counts, empty or not")
	assert.Empty(t, warnings)
}

func TestSchemaReportsAllAtOnce(t *testing.T) {
	minus := int64(-1)
	g := annotations("m/in", "80,", "m/cidrs", "10.0.0.0", "m/interfaces", "a b")
	g.Env["DROP"], g.RunAsUser, g.RunAsGroup = "yup", &minus, &minus
	r, origins, warnings, err := schema.Build(g)
	require.Error(t, err)
	assert.Zero(t, r)
	assert.Nil(t, origins)
	assert.Len(t, warnings, 1, "a boolean that is none only warns: %v", warnings)
	for _, want := range []string{
		`annotation m/in="80,": empty element (allowed: ports)`,
		`annotation m/cidrs="10.0.0.0": "10.0.0.0" is not a CIDR prefix`,
		`annotation m/interfaces="a b": `,
		`securityContext runAsUser="-1": not an id`,
		`securityContext runAsGroup="-1": not an id`,
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.Equal(t, 5, len(strings.Split(err.Error(), "\n")), "one line each")
	var setting *redirect.SettingError
	require.True(t, errors.As(err, &setting))
	assert.Equal(t, "m/in", setting.Key)
	assert.Equal(t, "80,", setting.Value)
}

func TestSchemaRunAs(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		user, group *int64
		uids, gids  []uint32
		err         bool
	}{
		{nil, nil, []uint32{1337}, nil, false},
		{id(0), id(0), []uint32{1337}, nil, false},
		{id(2000), nil, []uint32{2000}, nil, false},
		{nil, id(3000), []uint32{1337}, []uint32{3000}, false},
		{id(1 << 31), id(1<<32 - 2), []uint32{1 << 31}, []uint32{1<<32 - 2}, false},
		{id(1<<32 - 1), nil, nil, nil, true},
		{nil, id(1 << 40), nil, nil, true},
	} {
		r, origins, _, err := schema.Build(redirect.Values{RunAsUser: c.user, RunAsGroup: c.group})
		assert.Equal(t, c.err, err != nil, "%v", err)
		assert.Equal(t, c.uids, r.Proxy.UIDs)
		assert.Equal(t, c.gids, r.Proxy.GIDs)
		if c.user != nil && *c.user == 2000 {
			assert.Equal(t, redirect.Origin{Field: "proxy.uids", Source: redirect.FromSecurityContext, Key: "runAsUser", Value: "2000"}, origin(t, origins, "proxy.uids"))
		}
	}
	assert.Equal(t, []uint32{1337}, schema.Defaults.Proxy.UIDs, "Build wrote into the schema")
}

// TestSchemaUnknownKeys: an annotation that somebody misspelt has no effect, and does not go unnoticed.
func TestSchemaUnknownKeys(t *testing.T) {
	t.Parallel()
	schema := redirect.Schema{
		Defaults: redirect.Default(),
		Settings: []redirect.Setting{
			{Field: "inbound.excludePorts", Keys: []string{"net.example/skip-inbound", "net.example/old-skip-in"}},
			{Field: "outbound.excludePorts", Keys: []string{"net.example/skip-outbound"}, Inherited: true},
			{Field: "dropInvalid", Source: redirect.FromEnv, Keys: []string{"DROP_INVALID"}},
		},
		OtherKeys: []string{"net.example/skip-inboard"},
	}
	known := func(annotations, namespace map[string]string) (texts []string) {
		if namespace == nil {
			namespace = map[string]string{} // it has none
		}
		_, _, warnings, err := schema.Build(redirect.Values{Annotations: annotations, NamespaceAnnotations: namespace})
		require.NoError(t, err)
		for _, w := range warnings {
			assert.Equal(t, warning.Unknown, w.Code)
			assert.True(t, w.Key == "" || strings.Contains(w.Text, w.Key), w.Text)
		}
		return warnings.Texts()
	}
	assert.Empty(t, known(map[string]string{
		"net.example/skip-outbound": "80", "net.example/skip-inboard": "", "net.example/other": "", "DROP_INVALIDS": "", "a": "",
	}, nil))
	assert.Equal(t, []string{
		"annotation net.example/old-skipin is not known, so it has no effect; did you mean net.example/old-skip-in?",
		"annotation net.example/skip-inbond is not known, so it has no effect; did you mean net.example/skip-inbound?",
		"annotation net.example/skipOutbound is not known, so it has no effect; did you mean net.example/skip-outbound?",
		"namespace annotation net.example/skip-outbuond is not known, so it has no effect; did you mean net.example/skip-outbound?",
	}, known(map[string]string{"net.example/skip-inbond": "80", "net.example/skipOutbound": "80", "net.example/old-skipin": "x"},
		map[string]string{"net.example/skip-outbuond": "1"}))

	schema.Prefixes = []string{"net.example/"}
	assert.Equal(t, []string{"annotation net.example/other is not known, so it has no effect"},
		known(map[string]string{"net.example/other": "", "net.example/skip-inboard": "", "net.example.com/other": ""}, nil))
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprint("net.example/", i)] = ""
	}
	assert.Len(t, known(many, nil), 9, "a tenant writes as many as fit a pod")
}

func TestSchemaBooleans(t *testing.T) {
	for value, want := range map[string]struct{ on, warns bool }{
		"true": {true, false}, "1": {true, false}, "T": {true, false}, "false": {}, "0": {}, "": {}, "yes": {false, true}, "on": {false, true}, " true": {false, true},
	} {
		g := annotations()
		g.Env["DROP"] = value
		r, _, warnings, err := schema.Build(g)
		require.NoError(t, err)
		assert.Equal(t, want.on, r.DropInvalid, "%q", value)
		assert.Equal(t, want.warns, len(warnings) > 0, "%q: %v", value, warnings)
	}
}

// FuzzSchema: whatever pods say, the answer is an error that names each key at
// fault, or a Redirect that renders.
func FuzzSchema(f *testing.F) {
	f.Add("*", "10.0.0.0/8,fd00::/8", "eth0", "true", int64(0), int64(1337))
	f.Add("80,443", "", "eth0, net1", "maybe", int64(2000), int64(3000))
	f.Add("80,", "10.0.0.0", "-i", "", int64(-1), int64(1<<40))
	f.Add("", "127.0.0.0/8", "", "1", int64(1), int64(1))
	f.Add("", "", strings.Repeat("\xaa", 61), "", int64(1), int64(1)) // short, but not in quotes
	f.Fuzz(func(t *testing.T, in, cidrs, interfaces, drop string, user, group int64) {
		g := annotations("m/in", in, "m/cidrs", cidrs, "m/interfaces", interfaces)
		g.Env["DROP"], g.RunAsUser, g.RunAsGroup = drop, &user, &group
		r, origins, _, err := schema.Build(g)
		if err != nil {
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				var setting *redirect.SettingError
				require.ErrorAs(t, e, &setting)
				require.Contains(t, e.Error(), fmt.Sprintf("%s %s=%s", setting.Source, setting.Key, truncate.Quote(setting.Value)))
			}
			return
		}
		require.Len(t, origins, 6)
		require.NoError(t, r.Validate())
		rendersToItself(t, r)
	})
}

// TestSchemaTwoSettingsOfOneField: a default is said once, and not beside what a setting says.
func TestSchemaTwoSettingsOfOneField(t *testing.T) {
	port := func(r *redirect.Redirect, value string) (err error) {
		_, err = fmt.Sscan(value, &r.Proxy.InboundPort)
		return err
	}
	s := redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{
		{Field: "proxy.inboundPort", Source: redirect.FromEnv, Keys: []string{"PORT"}, Set: port},
		{Field: "proxy.inboundPort", Source: redirect.FromAnnotation, Keys: []string{"m/port"}, Set: port},
	}}
	for _, c := range []struct {
		env, annotation string
		want            []redirect.Source
	}{
		{"", "", []redirect.Source{redirect.FromDefault}},
		{"4000", "", []redirect.Source{redirect.FromEnv}},
		{"", "4000", []redirect.Source{redirect.FromAnnotation}},
		{"4000", "4001", []redirect.Source{redirect.FromEnv, redirect.FromAnnotation}},
	} {
		g := annotations()
		if c.env != "" {
			g.Env["PORT"] = c.env
		}
		if c.annotation != "" {
			g.Annotations["m/port"] = c.annotation
		}
		_, origins, _, err := s.Build(g)
		require.NoError(t, err)
		var got []redirect.Source
		for _, o := range origins {
			got = append(got, o.Source)
		}
		assert.Equal(t, c.want, got, "env %q, annotation %q", c.env, c.annotation)
	}
}

// A setting without Set is parsed by the type of its field, and an error names the annotation.
func TestSchemaByFieldType(t *testing.T) {
	for _, c := range []struct {
		setting redirect.Setting
		value   string
		want    func(*redirect.Redirect)
		err     string
	}{
		{setting: redirect.Setting{Field: "proxy.outboundPort"}, value: "4001", want: func(r *redirect.Redirect) { r.Proxy.OutboundPort = 4001 }},
		{setting: redirect.Setting{Field: "proxy.outboundPort"}, value: "0", err: "0 is no port to listen on"},
		{setting: redirect.Setting{Field: "proxy.tunnelPort", Grammar: redirect.Grammar{Zero: true}}, value: "0", want: func(r *redirect.Redirect) { r.Proxy.TunnelPort = 0 }},
		{setting: redirect.Setting{Field: "proxy.gids"}, value: "1, 2", want: func(r *redirect.Redirect) { r.Proxy.GIDs = []uint32{1, 2} }},
		{setting: redirect.Setting{Field: "proxy.uids"}, value: "7,0", err: "0 is root: all that runs as root would bypass the mesh"},
		{setting: redirect.Setting{Field: "proxy.gids"}, value: "wheel", err: `"wheel" is not a numeric id from 0 to 4294967294`},
		{setting: redirect.Setting{Field: "proxy.uids", Set: redirect.SetProxyUser}, value: "7", want: func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{7} }},
		{setting: redirect.Setting{Field: "proxy.uids", Set: redirect.SetProxyUser}, value: "0", err: "0 is root: all that runs as root would bypass the mesh"},
		{setting: redirect.Setting{Field: "inbound.excludePorts"}, value: "22", want: func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(22) }},
		{setting: redirect.Setting{Field: "inbound.excludePorts", Add: true}, value: "22", want: func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(22, 9999) }},
		{setting: redirect.Setting{Field: "outbound.excludeCIDRs", Grammar: redirect.Grammar{Addresses: true}}, value: "10.0.0.1", want: func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs = redirect.Prefixes(netip.MustParsePrefix("10.0.0.1/32"))
		}},
		{setting: redirect.Setting{Field: "virtualInterfaces"}, value: "br0", want: func(r *redirect.Redirect) { r.VirtualInterfaces = []string{"br0"} }},
		{setting: redirect.Setting{Field: "dropInvalid"}, value: "true", want: func(r *redirect.Redirect) { r.DropInvalid = true }},
		{setting: redirect.Setting{Field: "dropInvalid"}, value: "yes", err: `"yes" is not a boolean`},
		{setting: redirect.Setting{Field: "mode"}, value: "TPROXY", want: func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }},
		{setting: redirect.Setting{Field: "mode"}, value: "tproxy", err: `"tproxy" is no interception mode`},
	} {
		c.setting.Keys = []string{"m/key"}
		want := redirect.Default()
		want.Inbound.ExcludePorts = redirect.Ports(9999)
		got, _, _, err := redirect.Schema{Defaults: want, Settings: []redirect.Setting{c.setting}}.Build(annotations("m/key", c.value))
		if c.err != "" {
			assert.EqualError(t, err, `annotation m/key="`+c.value+`": `+c.err)
			continue
		}
		require.NoError(t, err, c.setting.Field)
		c.want(&want)
		assert.Equal(t, want, got, c.setting.Field)
	}
}

// TestWrongSchema: what is wrong with a schema is found without a pod, all at once, and is no fault of a pod's setting.
func TestWrongSchema(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"proxy.nosuch", "mode.deeper", "dns"} {
		s := redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{{Field: field, Keys: []string{"m/key"}}}}
		s.Defaults.Proxy.InboundPort = 0
		err := s.Validate()
		require.ErrorIs(t, err, redirect.ErrSchema)
		assert.ErrorContains(t, err, "setting 1 (m/key)")
		assert.ErrorContains(t, err, field)
		assert.ErrorContains(t, err, "proxy.inboundPort: 0 is no port")
		_, _, _, err = s.Build(annotations("m/key", "1"))
		require.ErrorIs(t, err, redirect.ErrSchema, field)
		assert.False(t, errors.As(err, new(*redirect.SettingError)), field)
	}
}

// TestInheritedUnknown: what a pod may inherit is not taken for absent.
func TestInheritedUnknown(t *testing.T) {
	t.Parallel()
	s := redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{
		{Field: "dropInvalid", Keys: []string{"m/drop"}}, {Field: "inbound.excludePorts", Keys: []string{"m/key"}, Inherited: true},
	}}
	assert.True(t, s.ReadsNamespace())
	_, _, _, err := s.Build(redirect.Values{})
	require.ErrorIs(t, err, redirect.ErrNamespaceUnknown)
	assert.ErrorContains(t, err, "m/key")
	_, _, _, err = s.Build(redirect.Values{NamespaceAnnotations: map[string]string{}})
	require.NoError(t, err)
	_, _, _, err = s.Build(redirect.Values{Annotations: map[string]string{"m/key": "80"}})
	require.NoError(t, err, "the pod's own counts")
	s.Settings = s.Settings[:1]
	assert.False(t, s.ReadsNamespace())
	_, _, _, err = s.Build(redirect.Values{})
	require.NoError(t, err)
}

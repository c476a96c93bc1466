package ruleset_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// memory collects the addresses of what v points to: by pointers and slices, with the path that leads there.
func memory(v reflect.Value, path string, to map[uintptr]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			to[v.Pointer()] = path
			memory(v.Elem(), path, to)
		}
	case reflect.Slice:
		if v.Len() > 0 {
			to[v.Pointer()] = path
		}
		for i := range v.Len() {
			memory(v.Index(i), fmt.Sprintf("%s[%d]", path, i), to)
		}
	case reflect.Struct:
		if v.Type().PkgPath() == "net/netip" { // immutable; a zone is a pointer that all addresses with it share
			return
		}
		for i := range v.NumField() {
			memory(v.Field(i), path+"."+v.Type().Field(i).Name, to)
		}
	}
}

// fill gives every field a value that is not zero, so that a field of later is one too.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Struct:
		switch v.Interface().(type) {
		case netip.Addr:
			v.Set(reflect.ValueOf(netip.MustParseAddr("10.0.0.1")))
		case netip.Prefix:
			v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/8")))
		case netip.AddrPort:
			v.Set(reflect.ValueOf(netip.MustParseAddrPort("10.0.0.1:80")))
		default:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(7).Convert(v.Type()))
	}
}

// TestClone: a copy is equal, and shares no memory with what it was made of.
func TestClone(t *testing.T) {
	t.Parallel()
	var rs ruleset.Ruleset
	fill(reflect.ValueOf(&rs).Elem())
	c := rs.Clone()
	assert.Equal(t, rs, c)
	ours, theirs := map[uintptr]string{}, map[uintptr]string{}
	memory(reflect.ValueOf(rs), "", ours)
	memory(reflect.ValueOf(c), "", theirs)
	for at, path := range theirs {
		assert.Empty(t, ours[at], "%s is shared", path)
	}
	assert.Len(t, theirs, len(ours))
	assert.Equal(t, ruleset.Ruleset{}, ruleset.Ruleset{}.Clone())
}

// TestZeroMatches: a match that is not set matches everything, is no text, and makes no difference.
func TestZeroMatches(t *testing.T) {
	t.Parallel()
	assert.True(t, ruleset.OwnerMatch{}.Matches(0, 0))
	assert.True(t, ruleset.OwnerMatch{Not: true}.Matches(1337, 1337))
	r := ruleset.Rule{Owner: []ruleset.OwnerMatch{{}, ruleset.OwnerIs(ruleset.OwnerUID, 0)}, Target: ruleset.Target{Action: ruleset.ActionReturn}}
	assert.Equal(t, "-m owner --uid-owner 0 -j RETURN", r.Text(ruleset.IPv4))
	other := r
	other.Owner = r.Owner[1:]
	assert.True(t, r.Equal(other))
	other.Owner = nil
	assert.False(t, r.Equal(other))
}

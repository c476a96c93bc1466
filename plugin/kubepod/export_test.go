package kubepod

// Transient is that of every source.
var Transient = transient

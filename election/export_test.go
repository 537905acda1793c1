package election

// PID is the server process of the session.
func (s *Session) PID() uint32 { return s.pid }
